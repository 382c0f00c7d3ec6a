"""`RayStrategy` over several nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import ray
import torch

from tests.trials.lightning.cases import FLAVOURS
from tests.trials.lightning.test_ray_strategy import batches, define, strategy, trainer

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.long  # tests/trials/groups/pools/test_placement.py has the ranks, test_manager_nodes.py two nodes
def test_several_nodes(without_ray: None, tmp_path: Path) -> None:
    """Two nodes of one rank each, and the script on a third that has no room for any."""
    from ray.cluster_utils import Cluster

    assert not ray.is_initialized()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1)
        cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="warning")
        Net, _ = define(FLAVOURS[0])

        class Placed(Net):  # type: ignore[misc,valid-type]
            def on_train_start(self) -> None:
                mine = [self.global_rank, self.local_rank, self.trainer.node_rank]
                gathered: list[Any] = [None, None]
                torch.distributed.all_gather_object(gathered, mine)
                self.ranks = gathered

        spread = strategy(placement_strategy="STRICT_SPREAD", lightning=FLAVOURS[0])
        made = trainer(FLAVOURS[0], tmp_path, max_epochs=1, enable_checkpointing=False, strategy=spread)
        model = Placed()
        made.fit(model, batches())
        assert model.ranks == [[0, 0, 0], [1, 0, 1]]
        assert made.global_step == 3
        made.strategy.release_workers()
    finally:
        ray.shutdown()
        cluster.shutdown()
