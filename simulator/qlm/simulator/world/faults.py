"""What goes wrong, carried out at its time."""

from collections.abc import Callable, Iterable

from qlm.simulator.scenario import (
    BrokerOutage,
    Fault,
    KillEngine,
    KillInstance,
    PauseController,
    SlowInstance,
    StoreOutage,
)
from qlm.simulator.world.controller import SimulatedController
from qlm.simulator.world.fleet import SimulatedFleet
from qlm.simulator.world.shared import SharedParts
from qlm.simulator.world.timeline import EPOCH_NS, Rank


def schedule_faults(
    faults: Iterable[Fault], parts: SharedParts, fleet: SimulatedFleet, controller: SimulatedController
) -> None:
    """Put all faults, and their ends, on the timeline.

    Faults of one kind may overlap: the end of the first ends them all.
    """
    for number, fault in enumerate(sorted(faults, key=repr)):
        for at_s, do in _steps(fault, parts, fleet, controller):
            parts.timeline.at(EPOCH_NS + round(at_s * 1e9), Rank.FAULT, number, lambda do: do(), do)


def last_step_s(fault: Fault) -> float:
    """When a fault has its last effect, seconds from the start."""
    match fault:
        case KillInstance(at_s=at_s, down_s=lasts_s):
            return at_s + lasts_s
        case KillEngine(at_s=at_s):
            return at_s
        case _:
            return fault.at_s + fault.for_s


def _steps(
    fault: Fault, parts: SharedParts, fleet: SimulatedFleet, controller: SimulatedController
) -> list[tuple[float, Callable[[], None]]]:
    match fault:
        case KillInstance(at_s=at_s, instance=instance, down_s=down_s):
            number = fleet.number_of(instance)
            return [(at_s, lambda: fleet.kill(number)), (at_s + down_s, lambda: fleet.restart(number))]
        case KillEngine(at_s=at_s, instance=instance):
            number = fleet.number_of(instance)
            return [(at_s, lambda: fleet.kill_engine(number))]
        case SlowInstance(at_s=at_s, instance=instance, for_s=for_s, factor=factor):
            number = fleet.number_of(instance)
            return [
                (at_s, lambda: fleet.slow_down(number, factor)),
                (at_s + for_s, lambda: fleet.slow_down(number, 1.0)),
            ]
        case PauseController(at_s=at_s, for_s=for_s):
            return _switch(controller, "paused", at_s, for_s)
        case StoreOutage(at_s=at_s, for_s=for_s):
            return _switch(parts, "store_down", at_s, for_s)
        case BrokerOutage(at_s=at_s, for_s=for_s):
            return _switch(parts, "broker_down", at_s, for_s)


def _switch(owner: object, name: str, at_s: float, for_s: float) -> list[tuple[float, Callable[[], None]]]:
    return [(at_s, lambda: setattr(owner, name, True)), (at_s + for_s, lambda: setattr(owner, name, False))]
