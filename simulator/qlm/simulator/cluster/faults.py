"""Fault injection: outages, crashes and slowdowns at scheduled times."""

from collections.abc import Callable, Iterable

from qlm.simulator.cluster.controller import SimulatedController
from qlm.simulator.cluster.event_queue import EPOCH_NS, Rank
from qlm.simulator.cluster.fleet import SimulatedFleet
from qlm.simulator.cluster.services import SharedServices
from qlm.simulator.scenario import (
    BrokerOutage,
    Fault,
    KillEngine,
    KillInstance,
    PauseController,
    SlowInstance,
    StoreOutage,
)


def schedule_faults(
    faults: Iterable[Fault], services: SharedServices, fleet: SimulatedFleet, controller: SimulatedController
) -> None:
    """Schedule all faults and their ends.

    Overlapping faults of one kind end with the first of them.
    """
    for number, fault in enumerate(sorted(faults, key=repr)):
        for at_s, do in _steps(fault, services, fleet, controller):
            services.event_queue.schedule(
                EPOCH_NS + round(at_s * 1e9), Rank.FAULT, number, lambda do: do(), do
            )


def last_step_s(fault: Fault) -> float:
    """Return the time of a fault's last effect, seconds from the start."""
    match fault:
        case KillInstance(at_s=at_s, down_s=lasts_s):
            return at_s + lasts_s
        case KillEngine(at_s=at_s):
            return at_s
        case _:
            return fault.at_s + fault.for_s


def _steps(
    fault: Fault, services: SharedServices, fleet: SimulatedFleet, controller: SimulatedController
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
            return _switch(services, "store_down", at_s, for_s)
        case BrokerOutage(at_s=at_s, for_s=for_s):
            return _switch(services, "broker_down", at_s, for_s)


def _switch(owner: object, name: str, at_s: float, for_s: float) -> list[tuple[float, Callable[[], None]]]:
    return [(at_s, lambda: setattr(owner, name, True)), (at_s + for_s, lambda: setattr(owner, name, False))]
