"""What happens to a trial, one SQL statement each: so each is atomic, whoever is killed when.

Every statement about a claim asks for its token; where another one is running, it changes no row and returns none.
"""

CLAIM = """
UPDATE trials SET status = 'running', attempts = attempts + 1, worker = :worker, machine = :machine, token = :token,
    lease_until = :now + :lease, started = :now, progress = NULL
WHERE key = (SELECT key FROM trials WHERE status = 'pending' AND deaths <= :most ORDER BY rank, key LIMIT 1)
RETURNING key, spec, attempts"""

BEAT = """
UPDATE trials SET lease_until = :now + :lease, progress = coalesce(:progress, progress)
WHERE key = :key AND token = :token RETURNING 1"""

FINISH = """
UPDATE trials SET status = :status, result = :result, arrays = :arrays, seconds = coalesce(:seconds, :now - started),
    best_validation = :best_validation, best_test = :best_test, last_validation = :last_validation,
    last_test = :last_test, ended = :now, token = NULL, lease_until = NULL, progress = NULL, error = NULL
WHERE key = :key AND token = :token RETURNING 1"""

# What came out elsewhere of a trial that nobody has begun here. It was not started here, and no worker had it.
TAKE_OVER = """
UPDATE trials SET status = :status, result = :result, arrays = :arrays, seconds = :seconds,
    best_validation = :best_validation, best_test = :best_test, last_validation = :last_validation,
    last_test = :last_test, ended = :now, machine = :origin, error = NULL
WHERE key = :key AND status = 'pending'"""

FAIL = """
UPDATE trials SET status = 'failed', error = coalesce(error || char(10), '') || :error, seconds = :now - started,
    ended = :now, token = NULL, lease_until = NULL
WHERE key = :key AND token = :token RETURNING 1"""

RELEASE = """
UPDATE trials SET status = 'pending', token = NULL, lease_until = NULL
WHERE key = :key AND token = :token RETURNING 1"""

# One more worker has ended in the middle of a trial. What is known about each time is added to the one before.
DIED = """
UPDATE trials SET deaths = deaths + 1, token = NULL, lease_until = NULL,
    status = CASE WHEN deaths + 1 >= :allowed THEN 'failed' ELSE 'pending' END,
    ended = CASE WHEN deaths + 1 >= :allowed THEN :now END,
    seconds = CASE WHEN deaths + 1 >= :allowed THEN :now - started END,
    error = coalesce(error || char(10), '') || 'Attempt ' || attempts || ', worker ' || worker
        || coalesce(' on ' || machine, '') || ': ' || :reason
        || coalesce(char(10) || 'It had last said: ' || progress, '')
        || CASE WHEN :log = '' THEN '' ELSE char(10) || 'The end of its log:' || char(10) || :log END
        || CASE WHEN deaths + 1 < :allowed THEN ''
           ELSE char(10) || 'This trial ended its worker ' || (deaths + 1) || ' times, so it is not tried again. '
               || :reason END
WHERE status = 'running' AND {which} RETURNING key"""

# A worker, and those that share its process: `name#0`, `name#1`, ...
OF_WORKER = "(worker = :worker OR substr(worker, 1, length(:worker) + 1) = :worker || '#')"

GIVE_BACK = f"""
UPDATE trials SET status = 'pending', token = NULL, lease_until = NULL
WHERE status = 'running' AND {OF_WORKER} RETURNING key"""

RETRY = """
UPDATE trials SET status = 'pending', deaths = 0, error = NULL, ended = NULL, seconds = NULL
WHERE status = 'failed' AND (:keys IS NULL OR key IN (SELECT value FROM json_each(:keys))) RETURNING key"""

DROP = """
DELETE FROM trials WHERE status = 'pending' AND key NOT IN (SELECT value FROM json_each(:keys)) RETURNING key"""
