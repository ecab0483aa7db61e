"""Under which name torch knows a group's backend. The shim calls this."""

from torch.distributed import distributed_c10d as c10d


def backend_name(group: str) -> str:
    """What `dist.get_backend()` says of CPU tensors in the group with that name.

    It is not "sagecomm" where the same factory is registered under another name as well.
    """
    for pg, name in list(c10d._world.pg_names.items()):
        if name == group:
            config = c10d.BackendConfig(c10d.Backend(c10d._world.pg_backend_config[pg]))
            return str(config.get_device_backend_map()["cpu"])
    return "sagecomm"
