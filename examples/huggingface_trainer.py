"""A Hugging Face Trainer as a trial: a callback reports each epoch with the checkpoint that the Trainer saved.

Needs transformers. The model is built from a configuration and the data are generated, so nothing is downloaded.

python examples/huggingface_trainer.py [asha|pbt]
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

import tuner


def sentences(count: int, seed: int) -> list[dict[str, Any]]:
    """Make sentences of eight words. The label says whether the first word is one of the first 25."""
    words = torch.randint(0, 50, (count, 8), generator=torch.Generator().manual_seed(seed))
    return [{"input_ids": sentence, "labels": int(sentence[0] < 25)} for sentence in words]


class Report(TrainerCallback):
    def __init__(self, lr: float) -> None:
        self.lr = lr

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Set the learning rate of this trial. If PBT has changed it, the checkpoint has restored the old one."""
        kwargs["lr_scheduler"].base_lrs = [self.lr] * len(kwargs["optimizer"].param_groups)
        for group in kwargs["optimizer"].param_groups:
            group["lr"] = self.lr

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        lr = kwargs["optimizer"].param_groups[0]["lr"]
        self.metrics = {"accuracy": kwargs["metrics"]["eval_accuracy"], "epoch": state.epoch, "lr": lr}

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        tuner.report(self.metrics, checkpoint=f"{args.output_dir}/checkpoint-{state.global_step}")


def train(config: dict[str, Any]) -> None:
    shape = BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=config["width"]
    )
    options: dict[str, Any] = {"num_train_epochs": 6, "learning_rate": config["lr"], "lr_scheduler_type": "constant"}
    options |= {"eval_strategy": "epoch", "save_strategy": "epoch", "save_total_limit": 1, "report_to": "none"}
    options["use_cpu"] = not torch.cuda.is_available()  # without it, ranks on CPUs would train separate models
    trainer = Trainer(
        BertForSequenceClassification(shape),
        TrainingArguments("out", per_device_train_batch_size=16, disable_tqdm=True, **options),
        train_dataset=sentences(256, seed=0),
        eval_dataset=sentences(128, seed=1),
        compute_metrics=lambda told: {"accuracy": (told.predictions.argmax(1) == told.label_ids).mean()},
        callbacks=[Report(config["lr"])],
    )
    if (checkpoint := tuner.get_checkpoint()) is None:
        trainer.train()
    else:  # a checkpoint of this trial or, under PBT, of a better one
        with checkpoint.as_directory() as folder:
            trainer.train(resume_from_checkpoint=folder)


SPACE = {"lr": tuner.loguniform(1e-4, 1e-2), "width": 64}
SCHEDULERS = {
    "asha": lambda: tuner.ASHAScheduler(grace_period=1, reduction_factor=3),
    "pbt": lambda: tuner.PopulationBasedTraining(perturbation_interval=3, hyperparam_mutations={"lr": SPACE["lr"]}),
}


def main(scheduler: str = "asha", **options: Any) -> tuner.Result:
    options = {"num_samples": 4, "num_workers": 2, "resources_per_worker": {"CPU": 0.5}, "max_t": 6, **options}
    return tuner.run(train, SPACE, metric="accuracy", mode="max", scheduler=SCHEDULERS[scheduler](), **options)


if __name__ == "__main__":
    print(main(*sys.argv[1:2]))
