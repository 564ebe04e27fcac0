"""Columns of tables of predictions, labels, masks and edges: found by their names, or told."""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgewise.suggestions import did_you_mean
from edgewise.tables.parts import Part, PartError

if TYPE_CHECKING:
    import pyarrow as pa

ID_NAMES = ("nid", "id", "node_id", "node", "ids")
PROBS_NAMES = ("pred", "probs", "prob", "probabilities", "predictions")
PROBS_PATTERNS = (r"p_?(\d+)", r"probs?_?(\d+)", r"pred_?(\d+)")
LABEL_NAMES = ("label", "y", "labels", "target", "class")
MASK_NAMES = ("mask", "test_mask", "test", "selected")
EDGE_NAMES = (
    ("src", "dst"),
    ("source", "target"),
    ("start", "end"),
    ("src_id", "dst_id"),
    ("src_nid", "dst_nid"),
    ("source_id", "target_id"),
    ("source_id_int", "dest_id_int"),
    ("from", "to"),
    ("u", "v"),
    ("head", "tail"),
)
INVALID = -2  # instead of a label that is none
NUMBERS = r"^[\[ ]*[-+.0-9eE]+([; ]+[-+.0-9eE]+)*[\] ]*$"
KEYS = ("id", "probs", "label", "mask", "src", "dst")  # of ``columns``


class NodeColumns(NamedTuple):
    """Names of the column of ids and of the columns of values. There may be none in a mask."""

    id: str
    values: tuple[str, ...]


def check_columns(columns: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the names of columns that are told, by their keys, which may start with a table, as in "labels.id"."""
    for key in columns or {}:
        table, _, name = key.rpartition(".")
        if name not in KEYS or table not in ("", "probs", "labels", "mask", "edges", "pairs"):
            raise ValueError(
                f"Expected keys of columns out of {', '.join(KEYS)}, or such as labels.id, but got {key!r}."
                f"{did_you_mean(name, KEYS)}"
            )
    return dict(columns or {})


def find_edge_columns(part: Part, told: Mapping[str, Any], table: str = "edges") -> tuple[str, str]:
    """Return the columns of the two ends: told, of well-known names, or the only two."""
    names = _names(part)
    if given := [told.get(f"{table}.{key}", told.get(key)) for key in ("src", "dst")]:
        if all(given):
            return _check_names(given, names, part)[0], given[1]
        if any(given):
            raise ValueError("Expected both src and dst in columns, but got one of them. Add the other one.")
    lower = {name.lower().lstrip("~"): name for name in names}
    for start, end in EDGE_NAMES:
        if start in lower and end in lower:
            return lower[start], lower[end]
    if len(names) == 2 and not part.is_text_file:  # whose first row may be an edge
        return names[0], names[1]
    raise PartError(
        f"Expected columns src and dst in {part.name}, but it has {_listed(names)}. Tell which they are: "
        "columns={'src': …, 'dst': …}, or --columns src=… dst=…."
    )


def find_prob_columns(part: Part, told: Mapping[str, Any]) -> NodeColumns:
    """Return the columns of ids and of probabilities: one with lists, or one per class."""
    names = _names(part)
    id_name = _find_id(part, told, "probs")
    if given := told.get("probs.probs", told.get("probs")):
        values = [given] if isinstance(given, str) else list(given)
        return NodeColumns(id_name, tuple(_check_names(values, names, part)))
    if name := _by_name(names, PROBS_NAMES, id_name):
        return NodeColumns(id_name, (name,))
    for pattern in PROBS_PATTERNS:
        numbered = {int(match[1]): name for name in names if (match := re.fullmatch(pattern, name.lower()))}
        if numbered and sorted(numbered) in (list(range(len(numbered))), list(range(1, len(numbered) + 1))):
            return NodeColumns(id_name, tuple(numbered[k] for k in sorted(numbered)))
    raise PartError(
        f"Expected a column pred with lists of probabilities in {part.name}, or columns p0, p1, …, but it has "
        f"{_listed(names)}. Tell which they are: columns={{'probs': …}}, or --columns probs=…."
    )


def tells_classes(told: Mapping[str, Any]) -> bool:
    """Return whether a column of probabilities is told for each class."""
    names = told.get("probs.probs", told.get("probs"))
    return names is not None and not isinstance(names, str) and len(names) > 1


def find_label_columns(part: Part, told: Mapping[str, Any]) -> NodeColumns:
    """Return the columns of ids and of labels."""
    names, id_name = _names(part), _find_id(part, told, "labels")
    name = told.get("labels.label", told.get("label")) or _by_name(names, LABEL_NAMES, id_name)
    others = [other for other in names if other != id_name]
    if name is None and len(others) == 1:
        name = others[0]
    if name is None:
        raise PartError(
            f"Expected a column label or y in {part.name}, but it has {_listed(names)}. Tell which it is: "
            "columns={'label': …}, or --columns label=…."
        )
    return NodeColumns(id_name, tuple(_check_names([name], names, part)))


def find_mask_columns(part: Part, told: Mapping[str, Any]) -> NodeColumns:
    """Return the column of ids, and that of booleans if there is one. Without it, the mask is a list of ids."""
    names = _names(part)
    if len(names) == 1 and not part.is_text_file:  # whose first row may be an id
        return NodeColumns(names[0], ())
    id_name = _find_id(part, told, "mask")
    name = told.get("mask.mask", told.get("mask")) or _by_name(names, MASK_NAMES, id_name)
    return NodeColumns(id_name, tuple(_check_names([name], names, part)) if name else ())


def _find_id(part: Part, told: Mapping[str, Any], table: str) -> str:
    names = _names(part)
    if given := told.get(f"{table}.id", told.get("id")):
        return _check_names([given], names, part)[0]
    if (name := _by_name(names, ID_NAMES)) is None:
        raise PartError(
            f"Expected a column nid or id in {part.name}, but it has {_listed(names)}. Tell which it is: "
            "columns={'id': …}, or --columns id=…."
        )
    return name


def _by_name(names: Sequence[str], known: Sequence[str], other_than: str = "") -> str | None:
    lower = {name.lower().lstrip("~"): name for name in names if name != other_than}
    return next((lower[name] for name in known if name in lower), None)


def _check_names(wanted: Sequence[str], names: Sequence[str], part: Part) -> list[str]:
    for name in wanted:
        if name not in names:
            raise PartError(
                f"Expected a column {name} in {part.name}, but it has {_listed(names)}.{did_you_mean(name, names)}"
            )
    return list(wanted)


def _names(part: Part) -> list[str]:
    """Return the names of the columns, which must differ."""
    names: list[str] = part.schema().names
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise PartError(f"Expected columns of different names in {part.name}, but two are named {twice}. Rename one.")
    return names


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:12]) + (", …" if len(names) > 12 else "")


def has_id_column(names: Sequence[str]) -> bool:
    """Return whether a table of predictions has a column of ids beside its probabilities."""
    if (id_name := _by_name(names, ID_NAMES)) is None:
        return False
    return _by_name(names, PROBS_NAMES, id_name) is not None or any(
        re.fullmatch(pattern, name.lower()) for pattern in PROBS_PATTERNS for name in names
    )


# --- values of columns ---


def id_kind(part: Part, column: str) -> str | None:
    """Return "integer" or "text", the kind of the ids in a column, or None if it has none, as in an empty CSV file."""
    from pyarrow import types

    schema = part.schema()
    if column not in schema.names:
        raise PartError(
            f"Expected a column {column} in {part.name}, as in the other parts, but it has {_listed(schema.names)}. "
            "Write the part again."
        )
    if schema.names.count(column) > 1:
        raise PartError(f"Expected one column {column} in {part.name}, but it has several. Rename the others.")
    id_type = schema.field(column).type
    if types.is_dictionary(id_type):
        id_type = id_type.value_type
    if types.is_integer(id_type):
        return "integer"
    if types.is_null(id_type):
        return None
    if types.is_string(id_type) or types.is_large_string(id_type) or _is_view(id_type):
        return "text"
    raise PartError(f"Expected ids in column {column} of {part.name}, integers or text, but got {id_type}. Convert it.")


def has_text(parts: Sequence[Part], column: str) -> bool:
    """Return whether a column is text in the first part in which its type is known."""
    from pyarrow import types

    schemas = (part.schema() for part in parts)
    found = (schema.field(column).type for schema in schemas if column in schema.names)
    value_types = (kind.value_type if types.is_dictionary(kind) else kind for kind in found)
    first = next((kind for kind in value_types if not types.is_null(kind)), None)
    return first is not None and (types.is_string(first) or types.is_large_string(first) or _is_view(first))


def kind_of_ids(parts: Sequence[Part], column: str) -> str:
    """Return the kind of the ids in the first part that has some."""
    return next((kind for part in parts if (kind := id_kind(part, column))), "text")


def _is_view(id_type: Any) -> bool:
    from pyarrow import types

    return bool(getattr(types, "is_string_view", lambda _: False)(id_type))


def id_type(kind: str) -> "pa.DataType":
    """Return the type of ids in memory."""
    import pyarrow as pa

    return pa.int64() if kind == "integer" else pa.string()


def read_ids(
    batch: "pa.RecordBatch", column: str, kind: str, part: Part, first_row: int, missing: int | str | None = None
) -> "pa.Array":
    """Return the ids of a batch as integers or text. A missing one is an error, or replaced by ``missing``."""
    import pyarrow as pa
    from pyarrow import compute

    ids = batch.column(column)
    try:
        ids = ids.cast(id_type(kind))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        where = f"column {column} of {part.name}"
        if pa.types.is_uint64(ids.type):
            is_large = compute.greater(ids, pa.scalar((1 << 63) - 1, pa.uint64()))
            where += f", row {first_row + is_large.index(True).as_py()}"
        raise PartError(
            f"Expected {kind} ids in {where}, as in the predictions, but got {ids.type}: "
            f"{error}. Convert the column, so that ids are written alike everywhere."
        ) from error
    if ids.null_count and missing is None:  # after the cast, as values of a dictionary may be null
        row = first_row + ids.is_null().index(True).as_py()
        raise PartError(f"Expected an id in each row of {part.name}, but column {column} is empty in row {row}.")
    return ids if missing is None else ids.fill_null(missing)


def read_prob_rows(
    batch: "pa.RecordBatch", columns: Sequence[str], part: Part, first_row: int
) -> NDArray[np.floating[Any]]:
    """Return the probabilities (rows, classes) of a batch: of a column of lists, or of text such as 0.1;0.9."""
    from pyarrow import compute, types

    if len(columns) > 1:
        cells = [_as_floats(batch.column(name), name, part, first_row) for name in columns]
        return np.stack(cells, axis=1)
    name, column = columns[0], batch.column(columns[0])
    if column.null_count:
        row = first_row + column.is_null().index(True).as_py()
        raise PartError(f"Expected probabilities in each row of {part.name}, but {name} is empty in row {row}.")
    if types.is_string(column.type) or types.is_large_string(column.type):
        column = _parse_lists(column, name, part, first_row)
    if not (types.is_list(column.type) or types.is_large_list(column.type) or types.is_fixed_size_list(column.type)):
        raise PartError(
            f"Expected lists of probabilities in column {name} of {part.name}, but got {column.type}. If it holds "
            "predicted classes, save probabilities (GraphStorm: return_proba: true)."
        )
    lengths = compute.list_value_length(column)
    shortest, longest = compute.min_max(lengths).as_py().values()
    if shortest != longest:
        row = first_row + compute.not_equal(lengths, lengths[0]).index(True).as_py()
        raise PartError(
            f"Expected lists of one length in column {name} of {part.name}, but row {row} has another one than row "
            f"{first_row}."
        )
    return _as_floats(column.flatten(), name, part, first_row, longest or 1).reshape(len(column), -1)


def _parse_lists(column: "pa.Array", name: str, part: Part, first_row: int) -> "pa.ListArray":
    """Parse text such as 0.1;0.9 or [0.1;0.9]."""
    import pyarrow as pa
    from pyarrow import compute

    cells = compute.split_pattern(compute.utf8_trim(column, "[] "), ";")
    try:
        return pa.ListArray.from_arrays(cells.offsets, cells.values.cast(pa.float64()))
    except pa.ArrowInvalid as error:
        wrong = compute.invert(compute.match_substring_regex(column, NUMBERS))
        row = max(wrong.index(True).as_py(), 0)
        raise PartError(
            f"Expected probabilities such as 0.1;0.9 in column {name} of {part.name}, but row {first_row + row} has "
            f"{column[row].as_py()[:40]!r}. Separate them by semicolons, or save them as Parquet."
        ) from error


def prob_types(columns: NodeColumns) -> "dict[str, pa.DataType]":
    """Return the types of the columns of probabilities in a text file, where the first ones may all be 0 or 1."""
    import pyarrow as pa

    return dict.fromkeys(columns.values, pa.float64()) if len(columns.values) > 1 else {}


def _as_floats(column: "pa.Array", name: str, part: Part, first_row: int, per_row: int = 1) -> NDArray[Any]:
    from pyarrow import types

    if not (types.is_floating(column.type) or types.is_integer(column.type)):
        raise PartError(f"Expected probabilities in column {name} of {part.name}, but got {column.type}. Convert it.")
    if column.null_count:
        row = first_row + column.is_null().index(True).as_py() // per_row
        raise PartError(f"Expected a probability in each cell of {part.name}, but {name} is empty in row {row}.")
    values: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return values if values.dtype.kind == "f" else values.astype(np.float64)


def read_labels(
    column: "pa.Array", name: str, part: Part, num_classes: int, class_names: "pa.Array | None"
) -> NDArray[np.int64]:
    """Return labels as integers, -1 for a missing one, and `INVALID` for another value."""
    import pyarrow as pa
    from pyarrow import compute, types

    if class_names is not None:
        text = column.cast(class_names.type)
        numbers = compute.index_in(text, value_set=class_names).fill_null(INVALID)
        found: NDArray[np.int64] = compute.if_else(text.is_valid(), numbers, -1).to_numpy(zero_copy_only=False)
        return found.astype(np.int64)
    if types.is_null(column.type):
        return np.full(len(column), -1, dtype=np.int64)
    if types.is_boolean(column.type):
        column = column.cast(pa.int8())
    if not (types.is_integer(column.type) or types.is_floating(column.type)):
        raise PartError(
            f"Expected labels from 0 to C - 1 in column {name} of {part.name}, but got {column.type}. Pass the names "
            "of the classes: class_names=…, or --classes FILE."
        )
    values = column.to_numpy(zero_copy_only=False)  # with NaN for missing ones
    is_label = (values >= 0) & (values < num_classes) & (values == np.floor(values))
    is_missing = np.isnan(values) | (values == -1)
    return np.where(is_label, np.where(is_label, values, 0).astype(np.int64), np.where(is_missing, -1, INVALID))
