"""What the configuration of a gateway says of the deployment, for operators to compare with what lives."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from qlm.domain.ids import InstanceId, ModelId


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredInstance:
    """An instance of the configuration.

    Attributes:
        id: Its name.
        accelerator: Kind of accelerator, as its agent reports it.
        models: Models that it serves.
        batching: Batch policy of its engines; None for their own order.
    """

    id: InstanceId
    accelerator: str
    models: Sequence[ModelId]
    batching: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Configured:
    """Parts of the configuration.

    Attributes:
        instances: All instances of the deployment.
        data_dir: Folder of the embedded queue; None if queue and state are servers.
        keys_required: Clients need an API key.
    """

    instances: Sequence[ConfiguredInstance] = ()
    data_dir: Path | None = None
    keys_required: bool = False


NOTHING_CONFIGURED: Final = Configured()
