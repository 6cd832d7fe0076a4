"""The errors a user can meet. Each is a sentence: what happened, where, and what to do."""


class SteadytuneError(ValueError):
    """Something about the input cannot be used as it is; the message says what to change."""


class NoEffect(SteadytuneError):
    """A method matched nothing, so the experiment would silently be the baseline. Never ignored."""
