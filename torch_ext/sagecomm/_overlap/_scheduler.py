"""Communicates the gradients of one layer while those of the next one are computed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from sagecomm._groups import member
from sagecomm._overlap._gradients import check_dense
from sagecomm._overlap._in_flight import InFlight, Waitable, issued, started_on


class OverlapScheduler:
    """Hooks of a module that reduce the gradients of each layer as soon as backward() has computed them.

        scheduler = OverlapScheduler(model, group)
        for batch in batches:
            loss_of(model(batch)).backward()      # layers communicate while earlier ones compute
            scheduler.wait()
            optimizer.step()
            optimizer.zero_grad()

    A layer is a submodule that has parameters of its own; those that require grad are reduced in one collective. With
    `update`, a layer is updated by a hook of its next forward(), so that the gradients of the last layers travel while
    the first layers of the next step compute; there is no wait() then but at the end. A parameter that several layers
    share counts to the first of them, which is updated before the forward() of each. A layer whose forward() is never
    called, because the module around it uses its parameters, is updated by a hook of that module.

    Parameters should be the same on all ranks at the start. All ranks must run the same computation: collectives follow
    the order in which gradients become ready, and a rank that takes another branch gets CollectiveMismatch.

    A program that catches what a step has raised, and goes on, calls abandon() before the next step.

    Args:
        module: The module whose submodules are the layers. None: there are none, for schedule_layer() alone.
        group: The process group; the default one if None.
        average: Average the gradients; otherwise add them up.
        update: update(layer) is called for each layer when its gradients are reduced. It steps the layer's optimizer
            and clears its gradients.

    Raises:
        ValueError: There is no group, or this rank is not in it; or backward() has made a sparse gradient.
    """

    def __init__(
        self,
        module: nn.Module | None = None,
        group: dist.ProcessGroup | None = None,
        *,
        average: bool = True,
        update: Callable[[nn.Module], object] | None = None,
    ) -> None:
        member(group, "OverlapScheduler")
        module = nn.Module() if module is None else module
        self.group = group
        self._op = "avg" if average else "sum"
        self._update = update
        self._enabled = True
        self._layers: list[_Layer] = []
        self._hooks: list[Any] = []
        self._parents = {child: parent for parent in module.modules() for child in parent.children()}
        self._ran: set[nn.Module] = set()  # modules whose forward() was called; with `update`
        if update is not None:
            for each in module.modules():
                self._hooks.append(each.register_forward_pre_hook(lambda ran, _: self._ran.add(ran)))
        owners: dict[nn.Parameter, _Layer] = {}
        for each in module.modules():
            trained = [p for p in each.parameters(recurse=False) if p.requires_grad]
            # A layer that shares a parameter may run before the one that the parameter is counted to. Hooks are in one
            # order on all ranks, since they may start collectives.
            for owner in dict.fromkeys(owners[p] for p in trained if p in owners):
                self._hook_forward(each, owner)
            own = [p for p in trained if p not in owners]
            if own:
                layer = _Layer(each, own)
                owners.update(dict.fromkeys(own, layer))
                self._attach(layer)

    def _attach(self, layer: _Layer) -> None:
        self._layers.append(layer)
        # Python's garbage collector does not look into hooks of tensors, so they would keep the module for ever. Hooks
        # of modules keep this object as long as the module lives.
        scheduler, of = weakref.ref(self), weakref.ref(layer)

        def computed(parameter: nn.Parameter) -> None:
            if (alive := scheduler()) is not None and (its := of()) is not None:
                alive._ready(its, parameter)

        for parameter in layer.parameters:
            ready: Any = parameter.register_post_accumulate_grad_hook  # torch has no types for it
            self._hooks.append(ready(computed))
        self._finish_before(layer.module, layer)

    def _finish_before(self, module: nn.Module, layer: _Layer) -> None:
        layer.finished_before = module
        self._hook_forward(module, layer)

    def _hook_forward(self, module: nn.Module, layer: _Layer) -> None:
        self._hooks.append(module.register_forward_pre_hook(lambda *_: self._before_forward(layer)))

    def _find_forward(self, layer: _Layer) -> None:
        """Finds the module whose forward() uses a layer: the nearest one around it whose forward() was called."""
        module: nn.Module | None = layer.finished_before
        while module is not None and module not in self._ran:
            module = self._parents.get(module)
        if module is not None and module is not layer.finished_before:
            self._finish_before(module, layer)

    def _ready(self, layer: _Layer, parameter: nn.Parameter) -> None:
        """A gradient of a layer has been accumulated."""
        if parameter.grad is not None:
            check_dense(parameter.grad, "OverlapScheduler")
        if self._update is not None:
            self._find_forward(layer)
        if not self._enabled:
            layer.accumulated.add(parameter)
            return
        if layer.works:
            raise RuntimeError(
                "sagecomm: OverlapScheduler: backward() came to a layer again whose gradients are being reduced: call "
                "wait() after each backward(), or use no_sync() for those that only accumulate"
            )
        layer.ready.add(parameter)
        if len(layer.ready) == len(layer.parameters):
            self._start(layer)

    def _start(self, layer: _Layer) -> None:
        computed = layer.ready | layer.accumulated
        # In the order of the parameters, whatever order they became ready in.
        gradients = [p.grad for p in layer.parameters if p in computed and p.grad is not None]
        layer.ready.clear()
        layer.accumulated.clear()
        if gradients:
            backend = started_on(self.group, "OverlapScheduler")
            layer.works = [backend.fused_all_reduce(gradients, self._op, async_op=True)]

    def _before_forward(self, layer: _Layer) -> None:
        if self._update is not None:
            self._finish(layer)
        elif layer.works or layer.ready:
            raise RuntimeError("sagecomm: OverlapScheduler: call wait() before the next forward()")

    def _finish(self, layer: _Layer) -> None:
        if layer.ready:  # some of its parameters had no part in the loss
            self._start(layer)
        if not layer.works:
            return
        for work in layer.works:
            work.wait()
        layer.works = []
        if self._update is not None:
            self._update(layer.module)

    def wait(self) -> None:
        """Waits until the gradients of all layers are reduced, and updates the layers if there is an `update`.

        The gradients of a layer of which only some parameters had a part in the loss are reduced here, and those that
        were computed under no_sync() alone.
        """
        for layer in self._layers:
            if layer.ready or (layer.accumulated and not layer.works):
                self._start(layer)
        for layer in self._layers:
            self._finish(layer)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """A scope whose backward() only accumulates gradients. The next one outside and its wait() reduce the sums."""
        before, self._enabled = self._enabled, False
        try:
            yield
        finally:
            self._enabled = before

    def schedule_layer(self, layer: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> InFlight:
        """Computes a layer and starts to add its output up over the ranks, while the caller goes on.

            output = scheduler.schedule_layer(layer, x)
            prepare_next_layer()
            y = output.wait()

        Backwards, each rank takes the gradient of the sum for that of its output.
        """
        works: list[dist.Work] = []
        y: torch.Tensor = _Sum.apply(layer(x), member(self.group, "OverlapScheduler"), works)
        return InFlight(y, works)

    def abandon(self) -> None:
        """Forgets a step that has raised: its gradients are neither waited for nor used for updates.

        Clear them with `zero_grad(set_to_none=True)` then: collectives that were started may still write to them. All
        ranks must abandon the step, and have started the same collectives in it.
        """
        for layer in self._layers:
            layer.ready.clear()
            layer.accumulated.clear()
            layer.works = []

    def remove(self) -> None:
        """Waits, and removes all hooks. They are removed as well if the wait raises."""
        with ExitStack() as removing:
            for hook in self._hooks:
                removing.callback(hook.remove)
            removing.callback(self._layers.clear)
            removing.callback(self._hooks.clear)
            self.wait()


class _Layer:
    def __init__(self, module: nn.Module, parameters: list[nn.Parameter]) -> None:
        self.module, self.parameters = module, parameters
        self.finished_before = module  # before its forward() the gradients are reduced
        self.ready: set[nn.Parameter] = set()  # whose gradients are computed and not yet sent
        self.accumulated: set[nn.Parameter] = set()  # whose gradients were computed under no_sync()
        self.works: list[Waitable] = []


class _Sum(torch.autograd.Function):
    """Returns a copy, since the operation that made the tensor may need it backwards."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup, works: list[dist.Work]) -> torch.Tensor:
        y = x.clone(memory_format=torch.contiguous_format)
        works.append(issued(dist.all_reduce(y, group=group, async_op=True)))
        return y

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return gradient, None, None
