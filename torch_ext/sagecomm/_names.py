"""The name under which torch knows a group's backend. The shim calls this."""

from torch.distributed import distributed_c10d as c10d


def backend_name(group: str) -> str:
    """Returns what `dist.get_backend()` returns for CPU tensors in the named group.

    It is not "sagecomm" if the group uses a second name under which the same factory is registered.
    """
    for pg, name in list(c10d._world.pg_names.items()):
        if name == group:
            config = c10d.BackendConfig(c10d.Backend(c10d._world.pg_backend_config[pg]))
            return str(config.get_device_backend_map()["cpu"])
    return "sagecomm"
