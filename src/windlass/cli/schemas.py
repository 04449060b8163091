"""JSON Schemas (draft 2020-12) of everything that `-o json` prints; a test holds real output to them.

A program may rely on what is required here. New fields may come; those that are there keep their meaning.
"""

from __future__ import annotations

from typing import Any, Final

from windlass.runs.record import Phase
from windlass.runs.start import Origin
from windlass.runs.tally import Spent

Schema = dict[str, Any]

TEXT: Final[Schema] = {"type": "string"}
WHOLE: Final[Schema] = {"type": "integer"}
FLAG: Final[Schema] = {"type": "boolean"}
TIME: Final[Schema] = {"type": "number", "description": "Unix seconds"}
ANY: Final[Schema] = {"type": "object"}
PHASE: Final[Schema] = {"enum": [phase.value for phase in Phase]}


def _object(required: dict[str, Schema], optional: dict[str, Schema] | None = None, *, more: bool = False) -> Schema:
    return {
        "type": "object",
        "required": list(required),
        "properties": {**required, **(optional or {})},
        "additionalProperties": more,
    }


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


NOTE: Final = _object({"code": TEXT, "message": TEXT, "fix": TEXT, "blocks": FLAG})
ATTEMPT: Final = _object({
    "number": WHOLE,
    "world_size": WHOLE,
    "phase": PHASE,
    "started_at": TIME,
    "ended_at": _or_null(TIME),
    "reason": _or_null(TEXT),
    "restored_step": _or_null(WHOLE),
    "members": _list(WHOLE),
})  # fmt: skip
RANK: Final = _object({"rank": WHOLE, "node": WHOLE, "pid": _or_null(WHOLE), "exit_code": _or_null(WHOLE)})
CAUSE: Final = _object(
    {"summary": TEXT},
    {
        "rank": WHOLE,
        "exit_code": _or_null(WHOLE),
        "signal": _or_null(TEXT),
        "traceback": TEXT,
        "victims": _list(WHOLE),
        "at": TIME,
        "node_lost": WHOLE,
    },
    more=True,
)
MISSING: Final = _object(
    {
        "find": {**TEXT, "description": "checkpoint.find of the job, which nothing matches"},
        "folder": {**TEXT, "description": "Where it was looked for"},
        "near": {**_list(TEXT), "description": "Names there that are most like it"},
        "entries": WHOLE,
    },
    more=True,
)
CHECKPOINT: Final = _object({"action": TEXT, "step": WHOLE, "name": TEXT, "at": TIME}, more=True)
CONDITION: Final = _object({"type": TEXT, "message": TEXT, "since": TIME}, more=True)
_RUN: Final[dict[str, Schema]] = {
    "id": TEXT,
    "name": TEXT,
    "target": TEXT,
    "host": {**_or_null(TEXT), "description": "Name of the machine that keeps it; null in records of older versions"},
    "phase": PHASE,
    "exit_code": _or_null(WHOLE),
    "created_at": TIME,
    "ended_at": _or_null(TIME),
    "phases": {
        "type": "object",
        "propertyNames": PHASE,
        "additionalProperties": {"type": "number", "minimum": 0},
        "description": "Seconds in each phase; they sum to the wall clock",
    },
    "ranks": _list(RANK),
    "progress": ANY,
    "cause": _or_null(CAUSE),
    "checkpoint": _or_null(CHECKPOINT),
    "checkpoint_missing": {**_or_null(MISSING), "description": "Set where nothing matches checkpoint.find"},
    "restarts_left": {**_or_null(WHOLE), "description": "Null in records of older versions, before one was used"},
    "waits_for": {**_or_null(TEXT), "description": "What its pods wait for, as the cluster says it"},
    "condition": {**_or_null(CONDITION), "description": "What keeps the run from being supervised; null if nothing"},
    "logs_dropped": _list(
        _object(
            {
                "attempt": WHOLE,
                "rank": WHOLE,
                "bytes": WHOLE,
                "lines": WHOLE,
                "why": {"enum": ["disk-full", "rotated"]},
            }
        )
    ),
    "output_dir": TEXT,
}
_TRUE: Final[dict[str, Schema]] = {
    "as_of": {**_or_null(TIME), "description": "When the state that is shown was true; null where it is as of now"},
    "stale": {**_or_null(TEXT), "description": "Why the state may be another by now; null where it is as of now"},
}
"""What `status` and `ps` say beside a run."""

NETWORK: Final = _object(
    {
        "interface": TEXT,
        "rate": _or_null(TEXT),
        "nodes": _list(_object({"node": WHOLE, "host": TEXT, "namespace": TEXT, "address": TEXT})),
    }
)
START: Final = _object({
    "origin": {
        "enum": [origin.value for origin in Origin],
        "description": "Where an attempt went on: from a checkpoint of Windlass, where the script resumed by itself, "
        "from the beginning; or it is not known",
    },
    "step": {**_or_null(WHOLE), "description": "Steps that were behind it; null where that is not known"},
    "epoch": {**_or_null({"type": "number"}), "description": "The epoch in which it went on, where no step is known"},
    "line": {**_or_null(TEXT), "description": "What the script has logged of its resume"},
})  # fmt: skip
LEDGER: Final = _object({
    "seconds": {
        "type": "object",
        "propertyNames": {"enum": [spent.value for spent in Spent]},
        "additionalProperties": {"type": "number", "exclusiveMinimum": 0},
        "description": "Seconds that were spent on each thing; they sum to wall_seconds",
    },
    "wall_seconds": {"type": "number", "minimum": 0},
    "goodput": {"type": "number", "minimum": 0, "maximum": 1, "description": "Share of the wall clock in training"},
    "attempts": WHOLE,
    "steps_redone": {**WHOLE, "description": "As far as it is known; see unknown_starts"},
    "unknown_starts": {**WHOLE, "description": "Restarts of which it is not known how many steps were redone"},
    "start": {**_or_null(START), "description": "Where the newest attempt went on; null for a first attempt"},
})  # fmt: skip
_VERDICT: Final[dict[str, Schema]] = {
    "verdict": {**TEXT, "description": "A stable code; docs/concepts/why.md lists all"},
    "summary": TEXT,
    "rank": {**_or_null(WHOLE), "description": "The rank that it began with; null where it concerns none or all"},
    "evidence": _list(TEXT),
    "fix": TEXT,
}
RESTART: Final = _object({
    "attempt": {**WHOLE, "description": "The attempt that was begun"},
    "reason": _or_null(TEXT),
    "seconds": {"type": "number", "minimum": 0, "description": "From the failure to this attempt's start"},
    "wait_seconds": _or_null({"type": "number", "minimum": 0}),
    "restarts_left": _or_null(WHOLE),
    "reached_step": _or_null(WHOLE),
    "restored_step": _or_null(WHOLE),
    "steps_redone": {**_or_null(WHOLE), "description": "null where it is not known"},
    "start": START,
})  # fmt: skip
WHY: Final = _object({
    "id": TEXT, "phase": PHASE, **_VERDICT, "others": _list(_object(_VERDICT)),
    "not_seen": {**_list(TEXT), "description": "What could not be looked at, and why"}, "restarts": _list(RESTART),
    "checkpoint_missing": _or_null(MISSING),
})  # fmt: skip
STATUS: Final = _object({**_RUN, "attempts": _list(ATTEMPT), "ledger": LEDGER}, {"network": NETWORK, **_TRUE})
_SEEN: Final[dict[str, Schema]] = {
    "id": TEXT,
    "name": TEXT,
    "target": TEXT,
    "namespace": TEXT,
    "phase": PHASE,
    "attempt": {**WHOLE, "description": "The newest for which pods were made; 0 before the first"},
    "pods_ready": WHOLE,
    "pods_total": WHOLE,
    "created_at": TIME,
    "waits_for": TEXT,
    "kept": {"enum": ["here", "elsewhere"], "description": "Whether this machine has its record"},
}
POD: Final = _object({
    "node": WHOLE,
    "name": TEXT,
    "state": {"enum": ["missing", "queued", "pulling", "running", "ended", "gone"]},
    "reason": TEXT,
    "message": TEXT,
    "machine": TEXT,
    "exit_code": _or_null(WHOLE),
})  # fmt: skip
AWAY: Final = _object({
    "target": TEXT,
    "stale": {**_or_null(TEXT), "description": "Why the cluster cannot be asked; null once it answers again"},
    "as_of": {**TIME, "description": "When it last answered: the states printed so far are as of then"},
    "runs": {**WHOLE, "description": "How many runs these are"},
})  # fmt: skip
SEEN: Final = _object({**_SEEN, "pods": _list(POD), "progress": ANY})
MONEY: Final[Schema] = {"type": "number", "minimum": 0}
COST: Final = _object({
    "per_node_hour": MONEY,
    "currency": TEXT,
    "source": TEXT,
    "spent": {
        "type": "object",
        "propertyNames": {"enum": [spent.value for spent in Spent]},
        "additionalProperties": MONEY,
        "description": "Money by phase; it sums to total",
    },
    "total": MONEY,
    "wasted": {**MONEY, "description": "What the time that was redone, hung or idle has cost"},
})  # fmt: skip
CODE: Final = _object(
    {
        "folder": TEXT,
        "digest": {**TEXT, "description": "SHA-256 of the archive"},
        "bytes": {**WHOLE, "description": "Of the archive"},
        "pieces": _list(ANY),
    },
    {
        "unpacked_bytes": {**WHOLE, "description": "Of the folder's files that travel; absent where none can"},
        "files": {**_list(_object({"name": TEXT, "bytes": WHOLE})), "description": "Of the folder, by name"},
        "left_out": {
            **_list(_object({"source": TEXT, "pattern": TEXT, "entries": WHOLE})),
            "description": "Files and folders that stay behind, by the line of an ignore file that says so",
        },
        "added": _object({"files": WHOLE, "bytes": WHOLE}),
    },
)
STEP: Final[Schema] = {
    **_object({"kind": TEXT, "summary": TEXT, "request": ANY}),
    "if": {"properties": {"kind": {"const": "code"}}},
    "then": {"properties": {"request": CODE}},
}
PLAN: Final = _object({
    "format": WHOLE,
    "run_id": TEXT,
    "name": TEXT,
    "target": TEXT,
    "engine": TEXT,
    "output_dir": TEXT,
    "num_nodes": WHOLE,
    "procs_per_node": WHOLE,
    "policy": ANY,
    "job": ANY,
    "steps": _list(STEP),
    "notes": _list(NOTE),
    "price": _or_null(ANY),
})  # fmt: skip
CHECK: Final = _object({"name": TEXT, "level": {"enum": ["ok", "warn", "fail"]}, "found": TEXT, "fix": TEXT})
CHECKED_JOB: Final = _object({
    "ok": FLAG,
    "name": TEXT,
    "target": TEXT,
    "nodes": WHOLE,
    "procs_per_node": WHOLE,
    "job": ANY,
    "notes": _list(NOTE),
})  # fmt: skip
FIGURES: Final = _object(
    {"nodes": _list(TEXT)},
    {
        "latency_seconds": {"type": "number", "description": "There and back, the median"},
        "bytes_per_second": {**_list({"type": "number"}), "description": "From the first pod to the second, and back"},
        "all_reduce_bytes_per_second": {"type": "number", "description": "Bytes of the tensor by the time it took"},
    },
)
CHECKED_CLUSTER: Final = _object({
    "ok": FLAG,
    "target": TEXT,
    "context": TEXT,
    "namespace": TEXT,
    "server": TEXT,
    "checks": _list(CHECK),
    "missing": {**_list(TEXT), "description": "Rights that are needed and not had"},
    "network": {**_or_null(FIGURES), "description": "null where it was not tried"},
    "job": {**_or_null(CHECKED_JOB), "description": "null where there is no job file"},
})  # fmt: skip
PROBLEM: Final = _object({"where": TEXT, "field": TEXT, "message": TEXT, "hint": TEXT})

SCHEMAS: Final[dict[str, Schema]] = {
    "plan": PLAN,
    "run": {
        "description": "With --detach the id alone, at once; else the last status, at the end",
        "anyOf": [_object({"id": TEXT}), STATUS],
    },
    "status": {"description": "The second with --on, of a run that another machine keeps", "anyOf": [STATUS, SEEN]},
    "stop": {"description": "The second with --on, of a run that another machine keeps", "anyOf": [STATUS, SEEN]},
    "cost": _object({
        "id": TEXT,
        "phase": PHASE,
        "ledger": LEDGER,
        "cost": {**_or_null(COST), "description": "null where the target has no price"},
    }),
    "why": WHY,
    "ps": {
        "description": "The second with --on; with --watch one line for each run that is there, changes or is removed, "
        "and when the cluster does not answer or answers again",
        "anyOf": [
            _list(_object({**_RUN, **_TRUE})), _list(_object(_SEEN)), _object(_SEEN),
            _object({"id": TEXT, "removed": FLAG}), AWAY,
        ],
    },
    "events": {
        "description": "Of each line",
        **_object({"seq": WHOLE, "time": TIME, "kind": TEXT}, more=True),
    },
    "resume": {
        "description": "With --detach the id alone, at once; else the last status, at the end",
        "anyOf": [_object({"id": TEXT}), STATUS],
    },
    "checkpoints": _object({
        "id": TEXT,
        "folder": TEXT,
        "checkpoints": {
            **_list(
                _object({
                    "name": TEXT,
                    "path": TEXT,
                    "step": WHOLE,
                    "epoch": WHOLE,
                    "created_at": TIME,
                    "bytes": WHOLE,
                    "complete": FLAG,
                    "state": {
                        **TEXT,
                        "description": "complete, unfinished, damaged, unreadable or unknown-format; by its manifest",
                    },
                    "attempt": WHOLE,
                    "world_size": WHOLE,
                    "problem": {**TEXT, "description": "Why it is not complete"},
                })
            ),
            "description": "Newest first",
        },
    }),
    "checkpoints-verify": _object({
        "id": TEXT,
        "ok": FLAG,
        "checkpoints": _list(
            _object({
                "name": TEXT,
                "state": {**TEXT, "description": "verified, damaged, unreadable, unknown-format or unfinished"},
                "problems": _list(TEXT),
            })
        ),
    }),
    "checkpoints-prune": _object({
        "id": TEXT,
        "removed": _list(TEXT),
        "set_aside": {**_list(TEXT), "description": "Damaged ones that were renamed, by the name that they had"},
        "kept": _list(TEXT),
        "freed_bytes": WHOLE,
    }),
    "checkpoints-export": _object({"id": TEXT, "name": TEXT, "path": TEXT, "bytes": WHOLE}),
    "cp": _object({"id": TEXT, "path": TEXT, "files": WHOLE, "bytes": WHOLE, "left_out": _list(TEXT)}),
    "rm": _object({"removed": _list(TEXT)}),
    "init": _object({"written": _list(TEXT), "template": TEXT, "reason": TEXT}),
    "import": _object({
        "written": {**_list(TEXT), "description": "Empty where the file went to standard output"},
        "kind": TEXT,
        "job": ANY,
        "text": {**TEXT, "description": "The job file"},
        "left": {
            **_list(_object({"field": TEXT, "line": WHOLE, "meaning": TEXT, "instead": TEXT, "is_ours": FLAG})),
            "description": "What the job file does not say; with is_ours there is nothing to do about it",
        },
    }),
    "check": {
        "description": "The first for a target that is a machine, the second for a cluster",
        "anyOf": [CHECKED_JOB, CHECKED_CLUSTER],
    },
    "doctor": _object({"ok": FLAG, "checks": _list(CHECK)}),
    "error": {
        "description": "On standard error, where a command with -o json refuses or breaks",
        **_object({
            "error": _object({"code": WHOLE, "message": TEXT, "hint": TEXT, "problems": _list(PROBLEM)}),
        }),
    },
}  # fmt: skip
for _schema in SCHEMAS.values():
    _schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
