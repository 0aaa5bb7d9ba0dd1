"""Worker jobs that hand back in the middle of their disk calls."""

import asyncio
import threading
from random import Random

import pytest

from penstock.errors import StorageFailed
from penstock.sim.disk import Mount, PowerLost, SimDisk
from penstock.sim.interruptible_jobs import JobThreads, SteppingWorker
from penstock.sim.scheduler import VirtualTimeLoop

ALWAYS = 1.0


class Scene:
    def __init__(self, share: float = ALWAYS, seed: int = 1) -> None:
        self.loop = VirtualTimeLoop(Random(seed))
        self.hands = JobThreads(Random(seed), share)
        self.mount: Mount = SimDisk(Random(seed)).mount()
        self.mount.on_call = self.hands.before_disk_call
        self.worker = SteppingWorker(self.loop, lambda: 0.5, self.hands)
        self.seen: list[str] = []

    def job(self) -> str:
        self.mount.make_folder("a")
        self.mount.make_folder("b")
        return "done"

    def play(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    def folders(self) -> list[str]:
        return sorted(self.mount.disk.root.seen)

    def close(self) -> None:
        self.worker.abandon()
        self.hands.close()
        self.loop.close()


def test_others_see_half_a_job() -> None:
    scene = Scene()
    scene.worker.submit(scene.job, lambda result, _: scene.seen.append(str(result)))
    found = []
    for _ in range(6):
        scene.play(0.4)
        found.append(scene.folders())
    scene.close()
    assert ["a"] in found
    assert found[-1] == ["a", "b"]
    assert scene.seen == ["done"]


def test_a_job_that_is_never_interrupted_takes_effect_at_once() -> None:
    scene = Scene(share=0.0)
    scene.worker.submit(scene.job, lambda result, _: scene.seen.append(str(result)))
    scene.play(0.6)
    assert scene.folders() == ["a", "b"]
    scene.close()


def test_what_the_loop_does_itself_is_not_interrupted() -> None:
    scene = Scene()
    assert scene.job() == "done"
    scene.close()


def test_a_failed_job_tells_why() -> None:
    scene = Scene()
    errors: list[BaseException | None] = []
    scene.worker.submit(lambda: scene.mount.list_folder("none"), lambda _, error: errors.append(error))
    scene.play(3.0)
    scene.close()
    assert isinstance(errors[0], StorageFailed)


def test_a_mistake_in_a_job_is_raised_where_the_loop_can_see_it() -> None:
    scene = Scene()
    failures: list[object] = []
    scene.loop.set_exception_handler(lambda _, details: failures.append(details["exception"]))
    scene.worker.submit(lambda: 1 // 0, lambda *_: None)
    scene.play(1.0)
    scene.close()
    assert isinstance(failures[0], ZeroDivisionError)


def test_a_job_of_a_dead_process_ends_and_leaves_no_thread() -> None:
    scene = Scene()
    before = threading.active_count()
    ended: list[str] = []

    def job() -> None:
        try:
            scene.job()
        except PowerLost:
            ended.append("at a disk call")
            raise

    scene.worker.submit(job, lambda *_: scene.seen.append("told"))
    scene.play(0.6)
    scene.mount.is_dead = True
    scene.worker.abandon()
    assert ended == ["at a disk call"]
    scene.close()
    assert threading.active_count() == before
    assert not scene.seen


def test_a_timer_that_outlives_a_kill_does_not_run_the_job_again() -> None:
    scene = Scene()
    failures: list[object] = []
    scene.loop.set_exception_handler(lambda _, details: failures.append(details))
    runs: list[str] = []

    def job() -> None:
        runs.append("begun")
        scene.job()

    scene.worker.submit(job, lambda *_: scene.seen.append("told"))
    scene.play(0.6)
    scene.mount.is_dead = True
    scene.worker.abandon()
    scene.play(3.0)  # the timer of the interrupted job falls due
    scene.close()
    assert runs == ["begun"]
    assert not failures
    assert not scene.seen


def test_jobs_after_a_kill_have_a_thread_each() -> None:
    """A thread that was given back twice went to two jobs: one of them ran as the other."""
    scene = Scene()
    scene.worker.submit(scene.job, lambda *_: None)
    scene.play(0.6)
    killed, scene.mount = scene.mount, scene.mount.disk.mount()
    scene.mount.on_call = scene.hands.before_disk_call
    killed.is_dead = True
    scene.worker.abandon()
    scene.play(3.0)
    ended: list[str] = []
    one, other = (
        SteppingWorker(scene.loop, lambda: 0.5, scene.hands),
        SteppingWorker(scene.loop, lambda: 0.3, scene.hands),
    )

    def job(name: str) -> None:
        scene.job()
        ended.append(name)

    one.submit(lambda: job("one"), lambda *_: None)
    other.submit(lambda: job("other"), lambda *_: None)
    scene.play(6.0)
    scene.close()
    assert sorted(ended) == ["one", "other"]


@pytest.mark.parametrize("seed", [1, 2])
def test_one_seed_is_one_order_of_events(seed: int) -> None:
    def moments() -> list[tuple[float, list[str]]]:
        scene = Scene(share=0.5, seed=seed)
        for _ in range(3):
            scene.worker.submit(scene.job, lambda *_: scene.seen.append(f"{scene.loop.now:.3f}"))
        found = []
        for _ in range(20):
            scene.play(0.25)
            found.append((scene.loop.now, scene.folders()))
        scene.close()
        return [*found, (0.0, scene.seen)]

    assert moments() == moments()
