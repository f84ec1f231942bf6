"""How the engines of an instance are started, from the configuration."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from qlm.agents.engine_attached import AttachedEngine
from qlm.agents.engine_host import EngineUnit, ModelHost
from qlm.agents.engine_process import EngineProcess, emulate_command, vllm_command
from qlm.agents.engine_vllm import VllmEngine
from qlm.agents.events import EngineChanged
from qlm.cli.config import Config, InstanceConfig, ModelConfig
from qlm.cli.wiring import GIB, profile_of
from qlm.domain.ids import ModelId
from qlm.rct_estimator.profile import Profile
