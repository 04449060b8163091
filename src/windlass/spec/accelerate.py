"""Translates the options of `accelerate launch`, and its configuration file, into fields of a job.

accelerate passes most of its settings to the ranks as variables (accelerate/utils/launch.py); this module sets the same
variables with the same defaults. Options take precedence over the file, as in accelerate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from windlass.spec.launchers import (
    LOGS_KEPT,
    OWN_AGENT,
    Option,
    Options,
    Parsed,
    Remark,
    count,
    dropped,
    flag,
    handled,
    problem,
    refused,
)
from windlass.spec.positions import found
from windlass.spec.yamltext import read_yaml

_VARIABLES: Final = {
    "mixed_precision": "ACCELERATE_MIXED_PRECISION",
    "num_cpu_threads_per_process": "OMP_NUM_THREADS",
    "dynamo_backend": "ACCELERATE_DYNAMO_BACKEND",
    "dynamo_mode": "ACCELERATE_DYNAMO_MODE",
    "dynamo_use_fullgraph": "ACCELERATE_DYNAMO_USE_FULLGRAPH",
    "dynamo_use_dynamic": "ACCELERATE_DYNAMO_USE_DYNAMIC",
    "dynamo_use_regional_compilation": "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION",
}
_SWITCHES: Final = {
    "cpu": ("ACCELERATE_USE_CPU", "true"),
    "debug": ("ACCELERATE_DEBUG_MODE", "true"),
    "enable_cpu_affinity": ("ACCELERATE_CPU_AFFINITY", "1"),
}
_FSDP: Final[Mapping[str, tuple[str, str | None]]] = {
    "fsdp_version": ("FSDP_VERSION", "1"),
    "fsdp_sharding_strategy": ("FSDP_SHARDING_STRATEGY", "FULL_SHARD"),
    "fsdp_reshard_after_forward": ("FSDP_RESHARD_AFTER_FORWARD", "true"),
    "fsdp_offload_params": ("FSDP_OFFLOAD_PARAMS", "false"),
    "fsdp_min_num_params": ("FSDP_MIN_NUM_PARAMS", "100000000"),
    "fsdp_auto_wrap_policy": ("FSDP_AUTO_WRAP_POLICY", None),
    "fsdp_transformer_layer_cls_to_wrap": ("FSDP_TRANSFORMER_CLS_TO_WRAP", None),
    "fsdp_backward_prefetch": ("FSDP_BACKWARD_PREFETCH", None),
    "fsdp_state_dict_type": ("FSDP_STATE_DICT_TYPE", None),
    "fsdp_forward_prefetch": ("FSDP_FORWARD_PREFETCH", "false"),
    "fsdp_use_orig_params": ("FSDP_USE_ORIG_PARAMS", "true"),
    "fsdp_cpu_ram_efficient_loading": ("FSDP_CPU_RAM_EFFICIENT_LOADING", "true"),
    "fsdp_sync_module_states": ("FSDP_SYNC_MODULE_STATES", "true"),
    "fsdp_activation_checkpointing": ("FSDP_ACTIVATION_CHECKPOINTING", "false"),
    "fsdp_activation_checkpointing_offload": ("FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD", "false"),
    "fsdp_ignored_modules": ("FSDP_IGNORED_MODULES", None),
}
_DEEPSPEED: Final = {
    "deepspeed_config_file": "ACCELERATE_DEEPSPEED_CONFIG_FILE",
    "zero_stage": "ACCELERATE_DEEPSPEED_ZERO_STAGE",
    "gradient_accumulation_steps": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
    "gradient_clipping": "ACCELERATE_GRADIENT_CLIPPING",
    "offload_optimizer_device": "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE",
    "offload_param_device": "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE",
    "zero3_init_flag": "ACCELERATE_DEEPSPEED_ZERO3_INIT",
    "zero3_save_16bit_model": "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL",
    "deepspeed_moe_layer_cls_names": "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES",
}
_OFFLOAD_FILES: Final = ("offload_optimizer_nvme_path", "offload_param_nvme_path")
_KINDS: Final = {
    "NO": "",
    "MULTI_GPU": "",
    "MULTI_CPU": "cpu",
    "FSDP": "use_fsdp",
    "DEEPSPEED": "use_deepspeed",
}
"""Maps each value of `distributed_type` to the equivalent option."""
_OF_THE_LAUNCHER: Final = (
    "compute_environment",
    "distributed_type",
    "machine_rank",
    "main_process_ip",
    "main_process_port",
    "rdzv_backend",
    "same_network",
    "main_training_function",
    "downcast_bf16",
    "deepspeed_multinode_launcher",
    *_OFFLOAD_FILES,
)
"""Keys of a configuration file that control how accelerate starts ranks; ignored, because Windlass starts the ranks."""


def _settings(values: int, *names: str) -> dict[str, Option]:
    """Creates options that set a variable of the ranks to the option's value; an option without a value sets true."""

    def option(name: str) -> Option:
        def take(parsed: Parsed, words: tuple[str, ...]) -> None:
            parsed.settings[name] = words[0] if words else True

        return Option(values, take)

    return {name.replace("_", "-"): option(name) for name in names}


_OWN_START = "write launcher: plain and a command: of accelerate's own, or set it up in the script"
ACCELERATE = Options(
    {
        "num-processes": count("processes", 1),
        "num-machines": count("nodes", 1),
        "max-restarts": count("restarts"),
        "m": flag("module"),
        "module": flag("module"),
        "no-python": flag("no-python"),
        **_settings(1, "config_file", "main_process_port", "gpu_ids"),
        **_settings(1, *(name for name in _VARIABLES if not name.startswith("dynamo_use"))),
        **_settings(1, *_FSDP, *_DEEPSPEED),
        **_settings(0, "cpu", "debug", "enable_cpu_affinity", "use_fsdp", "use_deepspeed"),
        **_settings(0, *(name for name in _VARIABLES if name.startswith("dynamo_use"))),
        **dict.fromkeys(("machine-rank", "main-process-ip", "rdzv-backend", "main-training-function"), handled(1)),
        **dict.fromkeys(("multi-gpu", "same-network", "quiet", "q", "downcast-bf16"), handled(0)),
        **dropped(1, LOGS_KEPT, "tee", "log-dir"),
        **dropped(1, OWN_AGENT, "role", "rdzv-conf", "monitor-interval", "deepspeed-multinode-launcher"),
        **refused(0, _OWN_START, "use-megatron-lm", "tpu", "use-parallelism-config"),
        **refused(1, "leave it out: the target selects machines, and nodes: sets their number", "deepspeed-hostfile"),
        **refused(
            1,
            "leave it out: resources: sets the number of GPUs",
            "deepspeed-inclusion-filter",
            "deepspeed-exclusion-filter",
        ),
        **refused(
            1, "write it into the file of --deepspeed_config_file", *(n.replace("_", "-") for n in _OFFLOAD_FILES)
        ),
        **refused(0, "see `windlass run --help`", "help", "h"),
    },
    first=("accelerate",),
)


def take_settings(parsed: Parsed, read_file: Callable[[str], str] | None, defaults: str | None) -> None:
    """Sets the fields of the job from the options and from accelerate's configuration file.

    `read_file` returns the text of a file and raises `JobFileError`; None if files cannot be read. `defaults` is the
    path of the file that `accelerate config` has written, if it exists; `--config_file` replaces it.
    """
    given = dict(parsed.settings)
    path = given.pop("config_file", None) or (None if "cpu" in given else defaults)
    file: dict[str, Any] = {}
    if path is not None and read_file is None:
        hint = "write its settings as options; the file is not shipped with the job"
        parsed.problems.append(problem("--config_file", "is not supported here", hint))
    elif path is not None and read_file is not None:
        file = _settings_of_file(parsed, path, read_file(path))
        if path == defaults:
            parsed.remarks.append(
                Remark(
                    "accelerate-defaults", f"accelerate's settings are read from {path}", "--config_file names others"
                )
            )
    kinds = ("cpu", "use_fsdp", "use_deepspeed")
    if any(kind in given for kind in kinds):  # an option for the kind of start replaces all such settings of the file
        file = {name: value for name, value in file.items() if name not in kinds}
    settings = {**file, **given}
    if settings.get("use_deepspeed") and file.get("_deepspeed_fields"):
        parsed.fields["env"] = {"ACCELERATE_CONFIG_DS_FIELDS": file["_deepspeed_fields"]}
    _set_size(parsed, settings)
    parsed.fields["env"] = {**parsed.fields.get("env", {}), **_variables(parsed, settings)}


def _settings_of_file(parsed: Parsed, path: str, text: str) -> dict[str, Any]:
    """Returns the settings in a file written by `accelerate config` as a flat mapping, keyed by option name."""
    read, positions = read_yaml(text, path, "it is written by `accelerate config`")
    parsed.problems += [one for _, one in positions.problems]
    settings: dict[str, Any] = {}
    for name, value in read.items():
        if isinstance(value, dict) and name.endswith("_config"):
            prefix = {"fsdp_config": "fsdp_", "dynamo_config": "dynamo_", "fp8_config": "fp8_"}.get(name, "")
            settings |= {key if key.startswith(prefix) else prefix + key: inner for key, inner in value.items()}
        elif value not in (None, "", {}):
            settings[name] = value
    environment = str(settings.get("compute_environment", "LOCAL_MACHINE"))
    kind = str(settings.get("distributed_type", "NO"))
    if environment != "LOCAL_MACHINE":
        parsed.problems.append(problem("--config_file", f"is for {environment}", "use a target of kind sagemaker"))
    elif kind not in _KINDS:
        parsed.problems.append(problem("--config_file", f"has distributed_type {kind}, not supported", _OWN_START))
    elif _KINDS[kind]:
        settings[_KINDS[kind]] = True
    if kind == "DEEPSPEED":
        fields = [*(read.get("deepspeed_config") or {}), *(["mixed_precision"] if "mixed_precision" in read else [])]
        settings["_deepspeed_fields"] = ",".join(fields).lower()
    if _is_true(settings.pop("use_cpu", False)):
        settings["cpu"] = True
    known = {"num_processes", "num_machines", "gpu_ids", "cpu", "debug", "enable_cpu_affinity", "use_fsdp",
             "use_deepspeed", "_deepspeed_fields", *_VARIABLES, *_FSDP, *_DEEPSPEED, *_OF_THE_LAUNCHER}  # fmt: skip
    for name in [name for name in settings if name not in known]:
        if settings[name] and not name.startswith("tpu_"):
            parsed.remarks.append(Remark("option-dropped", f"{name} of {path} is not used", _OWN_START))
        del settings[name]
    return settings


def _number(parsed: Parsed, settings: Mapping[str, Any], name: str) -> int | None:
    """Returns a number of the configuration file; None, with a problem, if the value is no positive integer."""
    value = settings.get(name)
    if value is None or (str(value).isdecimal() and int(value) > 0):
        return None if value is None else int(value)
    parsed.problems.append(problem("--config_file", f"{name}: expected a whole number from 1, found {found(value)}"))
    return None


def _set_size(parsed: Parsed, settings: Mapping[str, Any]) -> None:
    """Sets the ranks per node: `accelerate launch` counts ranks over all machines."""
    total, machines = parsed.fields.pop("processes", None), parsed.fields.get("nodes")
    if total is None:
        total = _number(parsed, settings, "num_processes")
    if machines is None and (machines := _number(parsed, settings, "num_machines")) is not None:
        parsed.fields["nodes"] = machines
    machines = machines or 1
    if total is None:
        parsed.fields["procs_per_node"] = 1 if _is_true(settings.get("cpu")) else "auto"
    elif total % machines:
        parsed.problems.append(problem("--num_processes", f"{total} do not divide over {machines} machines"))
    else:
        parsed.fields["procs_per_node"] = total // machines
    port = str(settings.get("main_process_port", ""))
    if port.isdecimal() and port != "0":
        parsed.fields["local"] = {"port": int(port)}


def _variables(parsed: Parsed, settings: Mapping[str, Any]) -> dict[str, str]:
    """Returns the variables that accelerate would set for each rank."""
    env = {variable: _text(settings[name]) for name, variable in _VARIABLES.items() if name in settings}
    env |= {variable: on for name, (variable, on) in _SWITCHES.items() if _is_true(settings.get(name))}
    if "ACCELERATE_DYNAMO_BACKEND" in env:
        env["ACCELERATE_DYNAMO_BACKEND"] = env["ACCELERATE_DYNAMO_BACKEND"].upper()
    if (ids := str(settings.get("gpu_ids", "all"))) != "all":
        env["CUDA_VISIBLE_DEVICES"] = ids
    if _is_true(settings.get("use_fsdp")):
        values = {variable: settings.get(name, usual) for name, (variable, usual) in _FSDP.items()}
        env |= {"ACCELERATE_USE_FSDP": "true"}
        env |= {variable: _text(value) for variable, value in values.items() if value is not None}
    if _is_true(settings.get("use_deepspeed")):
        env |= {"ACCELERATE_USE_DEEPSPEED": "true"}
        env |= {variable: _text(settings[name]) for name, variable in _DEEPSPEED.items() if name in settings}
    elif "gradient_accumulation_steps" in settings:
        text = "--gradient_accumulation_steps is not used: accelerate passes it to ranks with --use_deepspeed only"
        parsed.remarks.append(
            Remark("option-dropped", text, "Accelerator(gradient_accumulation_steps=…) in the script")
        )
    return env


def _is_true(value: object) -> bool:
    return str(value).lower() in ("true", "1", "yes", "y", "on", "t")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
