from . import bandit as bandit
from . import learning as learning
from . import policies as policies
from . import privacy as privacy
from .analysis import metrics as metrics
from .analysis import plotting as plotting
from .analysis import regret as regret
from .analysis.gauntlet.board import gauntlet as gauntlet
from .bandit import reward as reward
from .bandit import search as search
from .bandit.reward import Reward as Reward
from .base.struct import ConfigError as ConfigError
from .config import Asynchronous as Asynchronous
from .config import SimConfig as SimConfig
from .config import Synchronous as Synchronous
from .config import config_file as config_file
from .config import presets as presets
from .config import stack as stack
from .deploy import selector as selector
from .learning.config import Learning as Learning
from .run.record.quantities import QUANTITIES as QUANTITIES
from .run.record.quantity import Quantity as Quantity
from .run.record.quantity import quantity as quantity
from .run.record.result import Result as Result
from .run.simulate import simulate as simulate
from .sweeps.execute import SweepInterrupted as SweepInterrupted
from .sweeps.execute import sweep as sweep
from .world import latency as latency

__all__: list[str]
__version__: str
