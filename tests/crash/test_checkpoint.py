"""Checkpoints: whatever is killed, filled up or damaged, the old state is intact or the error is clear, and never are
there other numbers."""

import json
import os
import pickle
import random
import shutil
import signal
import time
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from checkpoint_writers import contents, for_ever, is_whole, killed_at, names, same, server, with_room_for, write

from steadytune import SteadytuneError, checkpoint


@pytest.fixture(scope="module")
def writers():
    with server() as started:
        yield started


# -- damage ---------------------------------------------------------------------------------------------------------

FILES = ["manifest.json", "state.json", "model.safetensors", "optimizer.safetensors"]


def flip(file, bit):
    with file.open("r+b") as stream:
        stream.seek(bit // 8)
        byte = stream.read(1)[0]
        stream.seek(bit // 8)
        stream.write(bytes([byte ^ 1 << bit % 8]))


def remove(file):
    file.unlink()


def halve(file):
    os.truncate(file, file.stat().st_size // 2)


def cut_one_byte(file):
    os.truncate(file, file.stat().st_size - 1)


def empty(file):
    os.truncate(file, 0)


def lengthen(file):
    file.write_bytes(file.read_bytes() + b"\0")


def zeros(file):
    file.write_bytes(bytes(file.stat().st_size))


def first_bit(file):
    flip(file, 0)


def middle_bit(file):
    flip(file, file.stat().st_size * 4 + 3)


def last_bit(file):
    flip(file, file.stat().st_size * 8 - 1)


DAMAGE = [remove, halve, cut_one_byte, empty, lengthen, zeros, first_bit, middle_bit, last_bit]


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("file", FILES)
def test_a_damaged_file_is_named_and_the_one_before_is_taken(tmp_path, file, damage):
    write(tmp_path, 1)
    path = write(tmp_path, 2)
    damage(path / file)
    with pytest.raises(SteadytuneError, match=file) as refused:
        checkpoint.read(path)
    found = checkpoint.latest(tmp_path)
    assert found.step == 1
    assert found.notes == (str(refused.value),)
    assert str(path) in found.notes[0]
    same((found.tensors, found.data), contents(1))


def test_a_shorter_file_is_told_from_a_changed_one(tmp_path):
    path = write(tmp_path, 1)
    halve(path / "model.safetensors")
    with pytest.raises(SteadytuneError, match=r"model\.safetensors has \d+ bytes and was written with \d+"):
        checkpoint.read(path)


def test_one_bit_anywhere_is_noticed(tmp_path):
    path = checkpoint.write(tmp_path, 2, {"c": {}, "a": {"x": torch.ones(1)}}, {"a": 1.5})  # c and a differ in one bit
    for file in path.iterdir():
        for bit in range(
            0, 8 * file.stat().st_size, 1 if file.name == "manifest.json" else 9
        ):  # the others have a plain sha256
            flip(file, bit)
            with pytest.raises(SteadytuneError, match=f"damaged: .*{file.name}"):
                checkpoint.read(path)
            flip(file, bit)
    assert checkpoint.read(path)[1] == {"a": 1.5}


def test_going_on_from_an_older_one_drops_the_damaged_newer_one(tmp_path):
    write(tmp_path, 10)
    flip(write(tmp_path, 20) / "model.safetensors", 100)
    assert checkpoint.latest(tmp_path).step == 10
    write(tmp_path, 15)
    assert names(tmp_path) == ["step-000010", "step-000015"]
    assert is_whole(tmp_path, {15})


def test_files_of_another_checkpoint_are_noticed(tmp_path):
    one, two = write(tmp_path, 1), write(tmp_path, 2)
    shutil.copy(one / "model.safetensors", two / "model.safetensors")
    with pytest.raises(SteadytuneError, match=r"model\.safetensors"):
        checkpoint.read(two)
    shutil.copy(one / "manifest.json", two / "manifest.json")
    with pytest.raises(SteadytuneError, match="damaged"):
        checkpoint.read(two)


def test_a_file_too_many_is_noticed_but_not_what_systems_leave_behind(tmp_path):
    path = write(tmp_path, 1)
    (path / ".DS_Store").write_bytes(b"?")
    same(checkpoint.read(path), contents(1))
    (path / "extra.safetensors").write_bytes(b"?")
    with pytest.raises(SteadytuneError, match=r"extra\.safetensors is not in its manifest"):
        checkpoint.read(path)


def test_all_damaged_is_an_error_that_names_each(tmp_path):
    for step in (1, 2):
        remove(write(tmp_path, step) / "state.json")
    with pytest.raises(SteadytuneError, match=r"No checkpoint .* is intact.*step-000002.*step-000001.*Delete"):
        checkpoint.latest(tmp_path)


def rewrite_manifest(path, **changes):
    """As somebody would who knows how it is made."""
    manifest = json.loads((path / "manifest.json").read_text()) | changes
    manifest.pop("sha256")
    own = sha256(checkpoint._to_json(manifest).encode()).hexdigest()
    (path / "manifest.json").write_text(checkpoint._to_json({**manifest, "sha256": own}))


def test_another_format_is_refused_by_number(tmp_path):
    path = write(tmp_path, 1)
    rewrite_manifest(path, format=2)
    with pytest.raises(SteadytuneError, match="format 2; this version reads 1"):
        checkpoint.read(path)


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("exploded",)


def test_a_pickle_with_a_right_hash_is_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path, 1)
    bomb = pickle.dumps(Bomb())
    (path / "model.safetensors").write_bytes(bomb)
    files = json.loads((path / "manifest.json").read_text())["files"]
    rewrite_manifest(
        path, files={**files, "model.safetensors": {"size": len(bomb), "sha256": sha256(bomb).hexdigest()}}
    )
    with pytest.raises(SteadytuneError, match="cannot be read"):
        checkpoint.read(path)
    assert not (tmp_path / "exploded").exists()


# -- killed ---------------------------------------------------------------------------------------------------------


def test_sigkill_at_random_moments_loses_nothing_that_was_written(tmp_path, writers):
    moments = random.Random(0)
    last, kills, until = 0, 0, time.monotonic() + 6.0
    while kills < 60 and time.monotonic() < until:
        pid = writers.fork(for_ever, tmp_path, last + 1)
        printed = [writers.line()]
        time.sleep(moments.uniform(0.0, 0.05))
        os.kill(pid, signal.SIGKILL)
        kills += 1
        more, code = writers.rest()
        assert code == -signal.SIGKILL
        said = int([*printed, *more][-1])
        last = is_whole(tmp_path, {said, said + 1}, size=20_000)
    assert kills > 10
    write(tmp_path, last + 1)
    assert all(name.startswith("step-") for name in names(tmp_path))  # what the killed ones left is gone


def test_sigkill_before_each_touch_of_the_disk(tmp_path, writers):
    """Every place where a write can be interrupted, one after the other, up to the write that is not."""
    seen, code, number = set(), -signal.SIGKILL, 0
    while code == -signal.SIGKILL:
        number += 1
        folder = tmp_path / str(number)
        write(folder, 1)
        write(folder, 2)
        writers.fork(killed_at, folder, number)
        _, code = writers.rest()
        seen.add(is_whole(folder, {2, 3}))
        write(folder, 4)
        assert set(names(folder)) <= {"step-000002", "step-000003", "step-000004"}
        assert is_whole(folder, {4})
    assert code == 0
    assert number > 15
    assert seen == {2, 3}


def test_everything_is_on_the_disk_before_the_name_is_there(tmp_path, monkeypatch):
    happened = []
    flush, rename = checkpoint._flush, os.rename
    monkeypatch.setattr(checkpoint, "_flush", lambda path: (happened.append(Path(path)), flush(path)))
    monkeypatch.setattr(os, "rename", lambda old, new: (happened.append("rename"), rename(old, new)))
    write(tmp_path, 1)
    renamed = happened.index("rename")
    assert sorted(path.name for path in happened[: renamed - 1]) == sorted(FILES)
    assert happened[renamed - 1] == happened[0].parent  # their directory
    assert happened[renamed + 1 :] == [tmp_path]


# -- full -----------------------------------------------------------------------------------------------------------


def room_needed(folder):
    return max(file.stat().st_size for file in write(folder, 1).iterdir())


@pytest.mark.parametrize("part", [0.0, 0.01, 0.1, 0.5, 0.999])
def test_a_full_disk_leaves_the_old_state_and_says_so(tmp_path, writers, part):
    writers.fork(with_room_for, tmp_path, int(part * room_needed(tmp_path)))
    (message,), code = writers.rest()
    assert code == 0
    assert "step 2 could not be written" in message
    assert "run the same command again" in message
    assert names(tmp_path) == ["step-000001"]
    assert is_whole(tmp_path, {1})


def test_a_disk_with_just_enough_room(tmp_path, writers):
    writers.fork(with_room_for, tmp_path, room_needed(tmp_path))
    assert writers.rest() == (["written"], 0)
    assert is_whole(tmp_path, {2})


def test_ctrl_c_while_writing_leaves_nothing_half_written(tmp_path, monkeypatch):
    write(tmp_path, 1)

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "save_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, 2)
    assert names(tmp_path) == ["step-000001"]
