"""The numbers of the trainer's layouts, which the session computes once."""

from tests.tasks.trainer.conftest import answers, work

__all__ = ["answers", "work"]
