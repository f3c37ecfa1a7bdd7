"""The requests of a job, as a configured server's delivery takes and answers them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from skerry.errors import SkerryError
from skerry.spec.worker import request_id
from skerry.worker.model.book import Asked
from skerry.worker.service.requests import DELIVERER, Name
from skerry.worker.service.runner import Runner

if TYPE_CHECKING:
    from skerry.worker.service.service import Service


class JobSource:
    """The requests of a job, for whoever answers them from here."""

    def __init__(self, service: Service, runner: Runner) -> None:
        self._service = service
        self._runner = runner

    async def take(self) -> list[tuple[Name, Asked]]:
        """Returns the next request, once there is one."""
        requests = self._runner.requests
        while True:
            taken = await requests.poll(DELIVERER, 1, 10.0)
            for name, _ in taken:
                try:
                    asked = self._service.desk.asked(self._runner, name)
                except SkerryError:
                    requests.give_back(name)
                    raise
                if asked is not None:
                    return [(name, asked)]
                requests.remove(name)

    async def give(self, name: Name, answer: Any) -> None:
        """Records an answer."""
        await self._service.desk.answer(self._runner.submit.job, request_id(*name), answer)

    def return_(self, name: Name) -> None:
        """It waits again."""
        self._runner.requests.give_back(name)
