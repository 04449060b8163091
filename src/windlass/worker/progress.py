"""Turns the raw output of one rank into progress: where it is, how fast it is, and what its loss is.

Three readers, the first that finds something in a rank's output being the one for it: the structured lines that
`windlass.train.report` writes, the regular expression of the job, and the formats that training code is known to print.
Precision goes over recall: a line that may be about something else gives nothing.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

Progress = dict[str, Any]

MARKER = b"::windlass "
_CHECKPOINT = MARKER + b'{"checkpoint": {'
_CHECKPOINT_ACTIONS = ("saved", "restored", "refused", "failed", "skipped")
_MOST_CHECKPOINTS = 256  # between two looks of the node
GROUPS = ("step", "total", "epoch", "loss", "samples", "rate")
"""What a job's own expression may name; `samples` is samples a second."""

_PARTIAL_BYTES = 64 << 10
_TAIL_BYTES = 16 << 10
_LINE_CHARS = 2048
_LINES = 32
_LINES_AFTER_STEP = 4  # how much further back than the newest step a loss or an epoch is looked for
_STRUCTURED_LINES = 16
_METRICS = 16
_INTEGER_LIMIT = 10**15

# Fields that belong together: they come from one line, so that no step is shown with another bar's total.
_TOGETHER = (("step", "total", "rate", "samples_per_second", "percent", "phase"), ("loss",), ("epoch",), ("metrics",))

_INT = r"(?:\d{1,3}(?:,\d{3}){1,4}|\d{1,15})"
_NUM = r"[-+]?(?:(?:\d{1,15}(?:\.\d{0,20})?|\.\d{1,20})(?:[eE][-+]?\d{1,3})?|nan|inf(?:inity)?)"
_ENDS = r"(?=$|[\s,;|()\[\]{}'\"]|\.(?:\s|$))"
_FLAGS = re.ASCII | re.IGNORECASE


def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, _FLAGS)


_ANSI = re.compile(r"\x1b\[[0-9;?]{0,16}[A-Za-z]")
_HINTS = (b"loss", b"epoch", b"step", b"iter", b"it/s", b"s/it", b"train", b"%|")

# tqdm: `desc:  45%|####5     | 450/1000 [00:12<00:15, 36.1it/s, loss=0.5]` and `450it [00:12, 36.1it/s]`
_BAR = _compile(r"[^|]*\|\s*(\d{1,15})/(\d{1,15})\s+\[[^,\]]*(?:,\s*(.*))?")
_BAR_PERCENT = _compile(r"\s*\d{1,3}$")
_OPEN_BAR = _compile(r"(?:(.{0,80}?):\s+)?(\d{1,15})it\s\[[\d:]+,\s*(.*)")
_BAR_SPEED = _compile(r"([\d.]{1,20}|\?)\s?(?:([a-z]{1,12})/s|s/([a-z]{1,12}))(?![a-z])")
_BAR_TRAINS = _compile(r"train|epoch|step|iter|batch|loss|\bfit")
_BAR_EVALUATES = _compile(r"valid|\bval\b|test|eval|sanity|predict|infer")
_BAR_PREPARES = _compile(
    r"\b(?:download|load|fetch|extract|map\b|tokeni|filter|process|pre-?process|prepar|cach|build|import|copy|upload|sav"
    r"|shard|generat|writ|read|scan|resolv|verif|index|pack|group|concat|convert)"
)
_BAR_EPOCHS = _compile(r"(?:training\s+)?epochs?")
_YOLO_COLUMNS = _compile(r"(\d{1,6})/\d{1,6}\s+[\d.]{1,10}[GM]?\s+[\d.]")
_STEP_UNITS = ("it", "step", "steps", "batch", "batches", "iter", "iters")
_SAMPLE_UNITS = ("sample", "samples", "img", "imgs", "image", "images")

# Lightning's rich bar: `Epoch 4/9  ━━━━━━━━ 232/291 0:00:33 • 0:00:09 7.00it/s train_loss: 0.398`
_RICH = _compile(r"Epoch (\d{1,9})(?:/\d{1,9})?\s+[━╸╺─\s-]+\s(\d{1,15})/(\d{1,15})\s+\d+:\d\d:\d\d\s(.*)")
# Keras: `100/500 ━━━━━━━━ 3s 12ms/step - loss: 0.5` and `100/500 [=====>....] - ETA: 3s - loss: 0.5`
_KERAS = _compile(r"\s*(\d{1,15})/(\d{1,15})\s+(?:[━─]+|\[[=>.]+\])\s(.*\bloss\b.*)")
# `Epoch: [3]  [ 40/500]`, `Epoch: [3][40/500]`, `Epoch(train) [3][40/500]`, `epoch 003:  40 / 500 loss=..`
_BRACKETS = _compile(
    r"\bepoch(?:\(train\))?:?\s*(?:\[\s*(\d{1,9})(?:/\d{1,9})?\]\s*\[\s*(\d{1,15})/\s*(\d{1,15})\]"
    r"|(\d{1,9}):\s+(\d{1,15}) / (\d{1,15}) )"
)
# `Train Epoch: 1 [640/60000 (1%)]` counts samples; `Train: 3 [  40/500 (  8%)]` counts steps.
_TRAIN_SAMPLES = _compile(r"\btrain epoch:?\s+(\d{1,9})\s+\[\s*\d{1,15}/\d{1,15}\s+\(\s*([\d.]{1,6})%\)\]")
_TRAIN_STEPS = _compile(r"\btrain:\s+(\d{1,9})\s+\[\s*(\d{1,15})/(\d{1,15})\s+\(\s*\d{1,3}%\)\]")

_EPOCH = _compile(
    r"\bepoch\b\s{0,9}[:=#]?\s{0,9}[\[(]?\s{0,9}(\d{1,9}(?:\.\d{1,9})?)(?![\w.]\w)(?:\s{0,9}(?:/|of)\s{0,9}\d{1,9})?"
)
_STEP = _compile(
    r"(?<![\w])(global[_ ]?step|train[_ ]?step|steps?|iter(?:ation)?s?|batch|update|it)\b\s{0,19}[:=#]?\s{0,19}[\[(]?"
    rf"\s{{0,19}}({_INT})(?![\w.]\w)(?:\s{{0,19}}(?:/|\bof\b)\s{{0,19}}({_INT}))?"
)
_LOSS = _compile(rf"loss(?:_step|_epoch)?\s{{0,9}}[:=]?\s{{0,9}}(?:is\s)?(?:tensor\()?\s{{0,9}}({_NUM}){_ENDS}")
_WORD_BEFORE = _compile(r"(?:^|[^a-z_])([a-z][a-z_]{0,15})[ _/-]$")
_LOSS_WORDS = _compile(
    r"train|training|lm|mlm|total|avg|average|mean|running|batch|step|epoch|the|ce|current|cur|smooth|smoothed|s|sec"
)
_WEAK_STEPS = ("steps", "batch", "it", "update")  # also names of settings: they count only beside a loss or a total

_RATE = _compile(r"(?<![\w.])([\d.]{1,20})\s?(?:it|steps?|iters?|batch(?:es)?)/s(?:ec)?\b")
_SECONDS_PER_STEP = _compile(r"(?<![\w.])([\d.]{1,20})\s?(m?s)/(?:it|step|iter|batch)\b")
_MS_PER_ITERATION = _compile(r"elapsed time per iteration \(ms\):\s+([\d.]{1,20})")
_SAMPLES = _compile(r"(?<![\w.])([\d,.]{1,20})\s?(?:samples?|images?|imgs?)/s(?:ec)?\b(?!\s?[:=])")
_SAMPLES_NAMED = _compile(r"\b(?:samples?|images?)(?:/s(?:ec)?|_per_second)\s?[:=]\s?([\d,.]{1,20})")
_PAIR = _compile(
    rf"(?<![\w@./])([a-z][\w@./-]{{0,39}})['\"]?\s?[:=]\s{{0,9}}(['\"]?)({_NUM})\2(?=$|[\s,;|()\[\]{{}}]|\.(?:\s|$))"
)
_NO_METRICS = _compile(
    r"steps?|global_step|train_step|iter|iteration|batch|epoch|loss|v_num|rank|gpu|eta|total|update|it"
    r"|(?:samples?|images?)(?:/s|/sec|_per_second)"
)

_DICT = _compile(r"\s*\{\s*['\"].*\}\s*$")
_DICT_COMPANIONS = ("epoch", "step", "global_step", "iter", "learning_rate", "grad_norm", "lr")
_TRAINING_LOSSES = (
    "loss", "train_loss", "train/loss", "training_loss", "loss_step", "train_loss_step", "total_loss", "lm_loss",
)  # fmt: skip

_BRACKETED = _compile(r"\[(?![^\]]{0,80}(?:epoch|step|iter|batch))[^\]]{0,80}\]")
_PREFIX_WORD = _compile(r"(?<![\w.])([a-z_][\w./]{0,60})(\s{0,4}[:|>-])?")
_PREFIX_CHARS = 200
_PREFIX_ALLOWED = _compile(
    r"info|debug|train|training|trainer|rank|gpu|worker|node|local_rank|proc|process|main|root|global"
    r"|mon|tue|wed|thu|fri|sat|sun|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec|am|pm|utc"
)
_PREFIX_DENIED = _compile(
    r"best|last|final|expected|resum(?:e|ed|ing)|warn|warning|error|fatal|critical|note|usage|example|config|args"
    r"|arguments|options|settings|hyperparameters|params|parameters|val|valid|validation|eval|test|early|earlystopping"
    r"|checkpoint|saved|loaded|default"
)
_DECORATION = _compile(r"[\s=*#:.|>\[\]()-]*")


class Recogniser:
    """Reads the output of one rank, in pieces of any size, and says what is new about its progress."""

    def __init__(self, pattern: str | None = None) -> None:
        """`pattern` is the job's own expression, searched in each line; raises ValueError where it cannot serve."""
        self._pattern = _own_pattern(pattern) if pattern is not None else None
        self._partial = b""
        self._partial_was_read = False
        self._only = ""
        self._evaluating = False
        self.checkpoints: list[dict[str, Any]] = []
        """What became of checkpoints, each once and in order; whoever reads it empties it."""

    def feed(self, chunk: bytes) -> Progress | None:
        """The newest progress in what `chunk` completes, or None; never raises, whatever the bytes are.

        Keys, each only where it was said: step and total (counts, as the line has them: of the run or of the epoch),
        epoch, loss, rate (steps a second), samples_per_second, phase, message, percent (0 to 100, only where there is
        no total) and metrics (name to number). Numbers that JSON does not know are "nan", "inf" and "-inf". Of known
        formats the phase is "evaluating", and "training" with the first step after it.
        A structured line is always found; of other lines the last 32 of a chunk are looked at.
        """
        data = self._partial + chunk if self._partial else chunk
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        was_read, self._partial_was_read = self._partial_was_read, False
        previous, self._partial = self._partial, data[end:][-_PARTIAL_BYTES:]
        found = self._structured(data)
        if found is not None:
            self._only = "structured"
            return found or None
        if self._only == "structured":
            return None
        tail_at = max(0, end - _TAIL_BYTES)
        lines = _last_lines(data[tail_at:end], cut=tail_at > 0 or len(previous) >= _PARTIAL_BYTES)
        if was_read and lines and previous.startswith(lines[0]):
            lines = lines[1:]  # a bar that was read before its end came
        return self._of_lines(lines)

    def _structured(self, data: bytes) -> Progress | None:
        """The last structured lines of `data` as one; None where there is none."""
        found: Progress | None = None
        stop = len(data)
        self._take_checkpoints(data)
        for _ in range(_STRUCTURED_LINES):
            at = data.rfind(MARKER, 0, stop)
            if at < 0:
                break
            end = data.find(b"\n", at)
            if data.startswith(_CHECKPOINT, at) and end >= 0:
                stop = at
                continue
            if end < 0:
                if len(data) - at <= _PARTIAL_BYTES // 8:
                    self._partial = data[at:]  # not whole yet, also where a terminal has put \r before \n
            else:
                fields = _from_json(data[at + len(MARKER) : end])
                if fields is not None:
                    found = {**fields, **(found or {})}
            stop = at
        return found

    def _take_checkpoints(self, data: bytes) -> None:
        """All lines about checkpoints that are whole: unlike progress, none replaces another."""
        at = data.find(_CHECKPOINT)
        while at >= 0:
            end = data.find(b"\n", at)
            if end < 0:
                return
            event = _checkpoint_event(data[at + len(MARKER) : end])
            if event is not None and len(self.checkpoints) < _MOST_CHECKPOINTS:
                self.checkpoints.append(event)
            at = data.find(_CHECKPOINT, end)

    def _of_lines(self, lines: list[bytes]) -> Progress | None:
        lines = [line for line in lines if _CHECKPOINT not in line]
        if self._pattern is not None:
            for line in reversed(lines):
                own = _from_own(self._pattern, line)
                if own:
                    self._only = "pattern"
                    return own
        if self._only == "pattern":
            return None
        # tqdm ends a bar by beginning the next one, which may be an hour later.
        if self._partial[-64:].rstrip().endswith(b"]") and len(self._partial) <= _LINE_CHARS:
            self._partial_was_read = True
            lines = [*lines, self._partial]
        found = _newest(lines)
        if found is not None and "phase" in found:
            self._evaluating = True
        elif found is not None and self._evaluating and "step" in found:
            self._evaluating = False
            found["phase"] = "training"
        return found


def recognise(line: str) -> Progress | None:
    """What one line of a known format says, or None; the structured lines are not among them."""
    if len(line) > _LINE_CHARS:
        return None
    if "\x1b" in line:
        line = _ANSI.sub("", line)
    for reader in (_from_bar, _from_dict, _from_special, _from_words):
        found = reader(line)
        if found is not None:
            return found or None
    return None


def _own_pattern(pattern: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as exc:
        raise ValueError(f"the progress pattern {pattern!r} is not a regular expression: {exc}") from exc
    unknown = sorted(set(compiled.groupindex) - set(GROUPS))
    if unknown or not compiled.groupindex:
        found = ", ".join(unknown) if unknown else "no named group"
        raise ValueError(f"the progress pattern {pattern!r} has {found}; it may name {', '.join(GROUPS)}")
    return compiled


def _last_lines(data: bytes, *, cut: bool) -> list[bytes]:
    """The last lines of `data`, which ends with one; the first piece is dropped where it is only a line's end."""
    lines = data.replace(b"\r", b"\n").split(b"\n")
    if cut:
        lines = lines[1:]
    return [line for line in lines[-_LINES - 1 :] if line]


def _is_hint(text: bytes) -> bool:
    lowered = text.lower()
    return any(hint in lowered for hint in _HINTS)


def _newest(lines: list[bytes]) -> Progress | None:
    if not lines or not _is_hint(b"\n".join(lines)):
        return None
    found: Progress = {}
    left = _LINES + 1
    for line in reversed(lines):
        if left == 0:
            break
        left -= 1
        if len(line) > 2 * _LINE_CHARS or not _is_hint(line):
            continue
        fields = recognise(line.decode("utf-8", "replace"))
        if fields:
            for together in _TOGETHER:
                if not any(name in found for name in together):
                    found.update((name, fields[name]) for name in together if name in fields)
            if "step" in found:
                left = 0 if "loss" in found else min(left, _LINES_AFTER_STEP)
    return found or None


# ---------------------------------------------------------------- structured lines and the job's own


def _from_json(data: bytes) -> Progress | None:
    try:
        value = json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    found: Progress = {}
    for name in ("step", "total"):
        number = value.get(name)
        if isinstance(number, int) and not isinstance(number, bool) and 0 <= number < _INTEGER_LIMIT:
            found[name] = number
    for name in ("epoch", "loss", "rate", "samples_per_second", "percent"):
        if _is_number(value.get(name)):
            found[name] = _safe(value[name])
    for name in ("phase", "message"):
        if isinstance(value.get(name), str):
            found[name] = value[name]
    if isinstance(value.get("metrics"), dict):
        numbers = {name: _safe(number) for name, number in value["metrics"].items() if _is_number(number)}
        if numbers:
            found["metrics"] = numbers
    return found


def _checkpoint_event(data: bytes) -> dict[str, Any] | None:
    """The fields of a line about a checkpoint, each only where it makes sense; None where there is no action."""
    try:
        value = json.loads(data.decode("utf-8", "replace"))["checkpoint"]
    except (ValueError, RecursionError, KeyError, TypeError):
        return None
    if not isinstance(value, dict) or str(value.get("action")) not in _CHECKPOINT_ACTIONS:
        return None
    found: dict[str, Any] = {"action": value["action"]}
    for name in ("step", "bytes"):
        number = value.get(name)
        if type(number) is int and 0 <= number < _INTEGER_LIMIT:
            found[name] = number
    for name in ("blocked_at", "blocked_seconds", "seconds"):
        number = value.get(name)
        if isinstance(number, (int, float)) and not isinstance(number, bool) and 0 <= number < float("inf"):
            found[name] = number
    for name in ("name", "reason"):
        if isinstance(value.get(name), str):
            found[name] = value[name][:_LINE_CHARS]
    return found


def _is_number(value: object) -> bool:
    if isinstance(value, str):
        return value in ("nan", "inf", "-inf")
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _safe(value: Any) -> Any:
    """A number as JSON can hold it: integers stay, the three that JSON lacks become their names."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if value != value else "inf" if value > 0 else "-inf"
    return value


def _from_own(pattern: re.Pattern[str], line: bytes) -> Progress | None:
    if len(line) > 2 * _LINE_CHARS:
        return None
    match = pattern.search(line.decode("utf-8", "replace"))
    if match is None:
        return None
    found: Progress = {}
    for group, text in match.groupdict().items():
        if not text:
            continue
        name = "samples_per_second" if group == "samples" else group
        value = _number(text)
        if group in ("step", "total"):
            if isinstance(value, float) and 0 <= value < _INTEGER_LIMIT:
                found[name] = int(value)
        elif value is not None:
            found[name] = _whole(value) if group == "epoch" else value
    return found


# ---------------------------------------------------------------- known formats: {} means "known, and not progress"


def _from_bar(line: str) -> Progress | None:
    at = line.find("%|")
    if at >= 0:
        match = _BAR.match(line, at + 2)
        if match is None:
            return {}
        description = _BAR_PERCENT.sub("", line[max(0, at - 300) : at]).strip()
        return _bar(description, int(match[1]), int(match[2]), match[3] or "")
    if "it [" in line:
        match = _OPEN_BAR.match(line.strip())
        if match is not None:
            return _bar((match[1] or "").strip(), int(match[2]), None, match[3])
    return None


def _bar(description: str, step: int, total: int | None, rest: str) -> Progress:
    yolo = _YOLO_COLUMNS.match(description)
    name = "" if yolo else description.rstrip(": ")
    if _BAR_PREPARES.search(name):
        return {}
    if _BAR_EVALUATES.search(name):
        return {"phase": "evaluating"}
    if name and not _BAR_TRAINS.search(name):
        return {}
    found: Progress = {}
    speed = _BAR_SPEED.match(rest)
    unit = (speed[2] or speed[3] or "it").lower() if speed else "it"
    rate = _number(speed[1]) if speed else None
    if speed and speed[3] and isinstance(rate, float):
        rate = 1 / rate if rate > 0 else None
    if _BAR_EPOCHS.fullmatch(name) or unit in ("epoch", "epochs"):
        found["epoch"] = step
    elif unit in _STEP_UNITS:
        found["step"] = step
        if total is not None:
            found["total"] = total
        if rate is not None:
            found["rate"] = rate
    elif unit in _SAMPLE_UNITS:
        if total:
            found["percent"] = round(min(100.0, 100.0 * step / total), 1)
        if rate is not None:
            found["samples_per_second"] = rate
    else:
        return {}
    epoch = yolo or _EPOCH.search(name)
    if epoch:
        found["epoch"] = _whole(_number(epoch[1]))
    _add_values(found, rest if speed is None else rest[speed.end() :])
    _add_loss(found, name)
    return found


def _from_dict(line: str) -> Progress | None:
    """What the Hugging Face Trainer prints, `{'loss': 0.69, 'grad_norm': 1.2, 'epoch': 0.5}`, or a line of JSON."""
    if not _DICT.match(line):
        return None
    values = {match[1].lower(): _number(match[3]) for match in _PAIR.finditer(line)}
    summary = "train_runtime" in values
    evaluated = "eval_loss" in values and "epoch" in values
    loss = next((values[name] for name in _TRAINING_LOSSES if name in values), None)
    if not (summary or evaluated or (loss is not None and any(name in values for name in _DICT_COMPANIONS))):
        return {}
    found: Progress = {}
    if loss is not None and not summary:  # the summary's loss is the mean of the whole run
        found["loss"] = loss
    if "epoch" in values:
        found["epoch"] = _whole(values["epoch"])
    step = next((values[name] for name in ("step", "global_step", "iter") if name in values), None)
    if isinstance(step, float) and 0 <= step < _INTEGER_LIMIT:
        found["step"] = int(step)
    if isinstance(values.get("samples_per_second"), float):
        found["samples_per_second"] = values["samples_per_second"]
    _add_metrics(found, values)
    return found


def _from_special(line: str) -> Progress | None:
    """Formats of libraries whose numbers stand in places of their own."""
    rich = _RICH.match(line.strip()) if line.lstrip().startswith("Epoch ") else None
    keras = _KERAS.match(line) if "loss" in line else None
    found: Progress
    if rich:
        found, rest = {"epoch": int(rich[1]), "step": int(rich[2]), "total": int(rich[3])}, rich[4]
    elif keras:
        found, rest = {"step": int(keras[1]), "total": int(keras[2])}, keras[3]
    else:
        place = _BRACKETS.search(line) or _TRAIN_STEPS.search(line) or _TRAIN_SAMPLES.search(line)
        if place is None:
            return None
        if not _is_preamble(line[: place.start()]):
            return {}
        if place.re is _TRAIN_SAMPLES:
            found = {"epoch": int(place[1]), "percent": _number(place[2])}
        else:
            epoch, step, total = [int(group) for group in place.groups() if group is not None]
            found = {"epoch": epoch, "step": step, "total": total}
        rest = line[place.end() :]
    _add_values(found, rest)
    _add_speed(found, rest)
    return found


def _from_words(line: str) -> Progress | None:
    """Hand-written lines: at least two of an epoch, a step and a loss, and nothing before them but a preamble."""
    epoch, step, losses = _EPOCH.search(line), _STEP.search(line), list(_losses(line))
    weak = step is not None and step[1].lower() in _WEAK_STEPS and step[3] is None
    if weak and not losses:
        step = None
    places = [match.start() for match in (epoch, step) if match is not None] + [start for start, _, _ in losses]
    if not places or not _is_preamble(line[: min(places)]):
        return None
    found: Progress = {}
    if epoch:
        found["epoch"] = _whole(_number(epoch[1]))
    if step:
        found["step"] = _integer(step[2])
        if step[3]:
            found["total"] = _integer(step[3])
    if (epoch is not None) + (step is not None) + bool(losses) < 2:
        alone = epoch or (step if step is not None and step[3] else None)
        if alone is None:
            return None
        _add_speed(found, line[alone.end() :])
        bare = _DECORATION.fullmatch(line, alone.end()) is not None
        return found if bare or "rate" in found or "samples_per_second" in found else None
    _add_values(found, line)
    _add_speed(found, line)
    return found


def _is_preamble(text: str) -> bool:
    """Whether `text` is what loggers put before a message: times, levels, names, ranks; not the words of a sentence."""
    if len(text) > _PREFIX_CHARS:
        return False
    for match in _PREFIX_WORD.finditer(_BRACKETED.sub(" ", text)):
        word = match[1]
        if _PREFIX_DENIED.fullmatch(word) or not (match[2] or _PREFIX_ALLOWED.fullmatch(word)):
            return False
    return True


# ---------------------------------------------------------------- numbers and names


def _losses(text: str) -> Iterator[tuple[int, str, Any]]:
    """Each loss as (where its name begins, the word before it, its value)."""
    for match in _LOSS.finditer(text):
        start = match.start()
        before = _WORD_BEFORE.search(text, max(0, start - 18), start)
        if before is None and start and (text[start - 1].isalnum() or text[start - 1] in "_"):
            continue
        yield (before.start(1) if before else start), (before[1].lower() if before else ""), _number(match[1])


def _add_loss(found: Progress, text: str) -> None:
    if "loss" in found:
        return
    for _, word, value in _losses(text):
        if not word or _LOSS_WORDS.fullmatch(word):
            found["loss"] = value
            return


def _add_values(found: Progress, text: str) -> None:
    _add_loss(found, text)
    values = {match[1].lower(): _number(match[3]) for match in _PAIR.finditer(text)}
    _add_metrics(found, values)


def _add_metrics(found: Progress, values: dict[str, Any]) -> None:
    chosen = [name for name in values if name not in _TRAINING_LOSSES and not _NO_METRICS.fullmatch(name)]
    if chosen:
        found["metrics"] = {name: values[name] for name in chosen[:_METRICS]}


def _add_speed(found: Progress, text: str) -> None:
    rate, slow, elapsed = _RATE.search(text), _SECONDS_PER_STEP.search(text), _MS_PER_ITERATION.search(text)
    value = _number(rate[1]) if rate else None
    per_step = slow or elapsed
    if value is None and per_step is not None:
        duration = _number(per_step[1])
        in_ms = slow is None or slow[2].lower() == "ms"
        value = (1000 if in_ms else 1) / duration if isinstance(duration, float) and duration > 0 else None
    if value is not None:
        found["rate"] = value
    samples = _SAMPLES.search(text) or _SAMPLES_NAMED.search(text)
    value = _number(samples[1].rstrip(",.")) if samples else None
    if value is not None:
        found["samples_per_second"] = value


def _number(text: str) -> Any:
    """A float, or "nan", "inf", "-inf"; None where the text is no number."""
    try:
        return _safe(float(text.replace(",", "")))
    except ValueError:
        return None


def _integer(text: str) -> int:
    return int(text.replace(",", ""))


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value
