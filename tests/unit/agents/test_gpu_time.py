"""The account of an instance's time: each nanosecond has one use."""

from hypothesis import given
from hypothesis import strategies as st

from qlm.agents.core.stats.gpu_time import BESIDE_WORK, RECENT_NS, Activity, GpuTime, GpuUse, Interval
from qlm.domain.ids import ModelId

A, B = ModelId("a"), ModelId("b")
BUSY = Activity(use=GpuUse.USEFUL, model=A)
IDLE = Activity.idle(A, ())
DOWN = Activity(use=GpuUse.DOWN)

observed = st.builds(
    Activity,
    use=st.sampled_from([use for use in GpuUse if use is not GpuUse.AGAIN]),
    model=st.sampled_from([A, B]),
    waiting=st.sampled_from([(), (A,)]),
    why=st.sampled_from(["", "x", "y"]),
)
step = st.one_of(
    st.tuples(st.just("observe"), observed, st.integers(0, 50)),
    st.tuples(st.sampled_from(["repeats", "spared"]), st.just(BUSY), st.integers(0, 80)),
)


@given(began_ns=st.integers(0, 1000), steps=st.lists(step, max_size=40))
def test_the_uses_add_up_to_the_time_and_the_intervals_to_the_uses(
    began_ns: int, steps: list[tuple[str, Activity, int]]
) -> None:
    intervals: list[Interval] = []
    account, now_ns = GpuTime(intervals.append), began_ns
    account.observe(DOWN, now_ns)
    before = dict(account.ns)
    for what, activity, ns in steps:
        if what == "observe":
            now_ns += ns
            account.observe(activity, now_ns)
        elif what == "repeats":
            account.repeats(ns, now_ns)
        else:
            account.spared(ns, now_ns)
        assert account.total_ns == now_ns - began_ns
        assert all(account.ns[use] >= before[use] for use in GpuUse), "a counter only grows"
        before = dict(account.ns)
    account.close()
    at_ns = began_ns
    for interval in intervals:
        assert interval.began_ns == at_ns and interval.lasts_ns > 0, "no gap and no overlap"
        at_ns = interval.ended_ns
    assert at_ns == now_ns
    for use in GpuUse:
        lengths = [each.lasts_ns for each in intervals if each.use is use]
        assert (sum(lengths), max(lengths, default=0)) == (account.ns[use], account.longest_ns[use])


@given(st.lists(observed, max_size=20))
def test_each_change_of_idleness_is_reported_once(activities: list[Activity]) -> None:
    reports: list[bool] = []
    account, known = GpuTime(on_idle=reports.append), False
    for now_ns, activity in enumerate(activities):
        account.observe(activity, now_ns)
        idle = activity.use in (*BESIDE_WORK, GpuUse.IDLE)
        assert account.idle is idle
        assert reports == ([idle] if idle is not known else [])
        known = idle
        reports.clear()


def test_tokens_computed_again_take_their_time_first_and_no_more_than_generations_run() -> None:
    account = GpuTime()
    account.observe(BUSY, 0)
    account.repeats(30, 0)
    account.observe(BUSY, 20)
    assert (account.ns[GpuUse.AGAIN], account.ns[GpuUse.USEFUL]) == (20, 0)
    account.observe(IDLE, 100)
    assert (account.ns[GpuUse.AGAIN], account.ns[GpuUse.USEFUL]) == (30, 70)
    account.observe(BUSY, 100)
    account.repeats(500, 100)
    account.observe(IDLE, 110)
    account.observe(BUSY, 120)
    account.observe(IDLE, 200)
    assert account.ns[GpuUse.AGAIN] == 40, (
        "what was not computed before the engine stopped is not carried over"
    )
    assert account.ns[GpuUse.USEFUL] == 150


def test_what_was_not_computed_again_is_taken_back() -> None:
    account = GpuTime()
    account.observe(BUSY, 0)
    account.repeats(50, 0)
    account.spared(40, 0)
    account.observe(BUSY, 100)
    assert account.ns[GpuUse.AGAIN] == 10
    account.spared(40, 100)
    account.repeats(5, 100)
    account.observe(BUSY, 200)
    assert account.ns[GpuUse.AGAIN] == 15, "what is counted stays counted"


def test_a_clock_that_is_set_back_takes_no_time_away() -> None:
    account = GpuTime()
    for now_ns in (100, 160, 40, 60):
        account.observe(IDLE, now_ns)
    assert account.total_ns == account.ns[GpuUse.IDLE] == 60 + 20


def test_a_pause_is_no_time() -> None:
    account = GpuTime()
    account.observe(IDLE, 0)
    account.observe(IDLE, 10)
    account.pause()
    account.observe(IDLE, 1000)
    account.observe(IDLE, 1001)
    assert (account.total_ns, account.longest_ns[GpuUse.IDLE]) == (11, 10)


def test_idle_time_depends_on_what_waits() -> None:
    assert Activity.idle(A, ()).use is GpuUse.IDLE
    assert Activity.idle(A, (B,)).use is GpuUse.IDLE_LOADABLE
    assert Activity.idle(A, (B, A)).use is GpuUse.IDLE_AWAKE


def test_an_interval_keeps_the_reason_that_stood_longest() -> None:
    intervals: list[Interval] = []
    account = GpuTime(intervals.append)
    for why, now_ns in (("first", 0), ("long", 10), ("last", 60), ("", 80)):
        account.observe(Activity.idle(A, (B,) if why else (), why), now_ns)
    account.observe(BUSY, 90)
    (interval,) = (each for each in intervals if each.use in BESIDE_WORK)
    assert (interval.began_ns, interval.lasts_ns, interval.activity.why) == (0, 80, "long")


def test_time_counts_as_computed_again_from_the_announcement_on() -> None:
    account = GpuTime()
    account.observe(BUSY, 0)
    account.repeats(30, 40)
    account.observe(BUSY, 60)
    assert (account.ns[GpuUse.USEFUL], account.ns[GpuUse.AGAIN]) == (40, 20)


def test_an_instance_that_generates_is_observed_again_after_a_while_or_for_another_model() -> None:
    account = GpuTime()
    assert not account.generates(A, 0)
    account.observe(BUSY, 0)
    assert account.generates(A, RECENT_NS - 1)
    assert not account.generates(B, 1) and not account.generates(A, RECENT_NS)
    account.observe(IDLE, 1)
    assert not account.generates(A, 2) and account.idle
