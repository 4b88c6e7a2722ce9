"""Reading a table from a text file or from Parquet."""

from __future__ import annotations

import csv
import math
import re
import sys
import warnings
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mhrun.data.memory import available, check_memory, in_bytes
from mhrun.data.missing_values import MissingValues, check_present, of_column, without_values
from mhrun.errors import UserError, reason
from mhrun.numbers import is_number_text

COPIES = 3
"""Copies of a table's numbers that are held at once while it is read."""

_WORD = re.compile(r"[\w.\-\"']+")
_BYTES = 10  # of memory for each byte of text, measured on columns of single digits
_EXACT = (3, 1)  # the version from which pandas reads the nearest number by itself
_INSTEAD = "save its columns by np.save and choose data=memmap, which leaves them on the disk"


def read_table(path: Path, separator: str | None, missing_values: MissingValues = ()) -> Any:
    """Return a table as pandas reads it.

    Args:
        path: .csv, .tsv or .txt, also compressed, or .parquet.
        separator: of a text file; None to detect it in the first line.
        missing_values: texts and numbers that are read as empty cells.

    Raises:
        UserError: it is not a table, two columns have the same name, it does not fit into memory, or no cell has one of
            the missing values.
    """
    frame = _read(path, separator)
    if missing_values:
        check_present(frame, missing_values, path)
        frame = without_values(frame, missing_values)
    return frame


def _read(path: Path, separator: str | None) -> Any:
    import pandas as pd

    kind = path.name.lower().split(".")
    try:
        if _is_parquet(path):
            frame = _parquet(path)
        else:
            if not {"csv", "tsv", "txt"} & set(kind):
                raise UserError(f"{path.name} is not a supported table; give a .csv, .tsv, .txt or .parquet.")
            _check_text(path)
            frame = _text(path, _separator(path) if separator is None else separator)
    except (UserError, KeyboardInterrupt):
        raise
    except pd.errors.ParserWarning as error:
        raise UserError(
            f"{path.name}: its rows have more values than its first line has names; give each column a name."
        ) from error
    except UnicodeDecodeError as error:
        encoding = "UTF-16" if error.object[:2] in (BOM_UTF16_LE, BOM_UTF16_BE) else "LATIN1"
        raise UserError(
            f"{path.name} is not UTF-8 text (a byte {error.object[error.start]:#x}); save it as UTF-8, such as by "
            f"iconv -f {encoding} -t UTF-8."
        ) from error
    except ImportError as error:
        package = "pyarrow" if _is_parquet(path) else str(getattr(error, "name", None) or "a package")
        raise UserError(f"{path.name} needs {package} to be read: pip install {package}.") from error
    except Exception as error:  # pandas, pyarrow and decompressors raise many errors for an invalid file
        raise UserError(f"{path.name} cannot be read as a table: {reason(error)}") from error
    return frame


def _text(path: Path, separator: str) -> Any:
    """Return a text file as pandas reads it; numbers are the nearest in float64, as Python reads them."""
    import pandas as pd

    options = _options(separator)
    with warnings.catch_warnings():  # pandas would drop values beyond the names of the first line
        warnings.filterwarnings("error", "Length of header", pd.errors.ParserWarning)
        # Without a header: pandas renames a second y to y.1.
        first = pd.read_csv(path, header=None, nrows=1, dtype=str, **options)
        names = [name for name in first.iloc[0].tolist() if isinstance(name, str)]
        _check_header(names, path)
        _check_names(names, path)
        return pd.read_csv(path, **options)


def _options(separator: str) -> dict[str, Any]:
    """Return how pandas reads a text file."""
    import pandas as pd

    options: dict[str, Any] = {"sep": separator, "index_col": False}
    # In one piece: of columns with numbers and texts pandas would infer another type for each piece.
    options |= {"engine": "c", "low_memory": False} if len(separator) == 1 else {"engine": "python"}
    if options["engine"] == "c" and tuple(map(int, pd.__version__.split(".")[:2])) < _EXACT:
        options |= {"float_precision": "round_trip"}
    return options


def texts_of_missing(
    frame: Any, columns: Sequence[str], path: Path, separator: str | None, missing_values: MissingValues = ()
) -> dict[str, str]:
    """Return, for columns of text, the commonest text such as NA that pandas reads as a missing value.

    Args:
        frame: the table as it was read from the file.
        columns: of it.
        path: the file.
        separator: as in `read_table`.
        missing_values: which are not returned.
    """
    import pandas as pd

    wanted = [name for name in columns if frame[name].dtype.kind not in "biufc" and frame[name].isna().any()]
    if not wanted or _is_parquet(path):
        return {}
    options = _options(_separator(path) if separator is None else separator)
    written = pd.read_csv(path, dtype=str, keep_default_na=False, usecols=wanted, **options)
    texts = {name: written.loc[frame[name].isna().to_numpy(), name].value_counts() for name in wanted}
    named = {name: {"", *map(str, of_column(missing_values, name))} for name in texts}
    found = {
        name: [str(text) for text in counts.index if text.strip() not in named[name]]
        for name, counts in texts.items()
    }
    return {name: values[0] for name, values in found.items() if values}


def _is_parquet(path: Path) -> bool:
    return path.name.lower().endswith((".parquet", ".pq"))


def _separator(path: Path) -> str:
    """Return the separator of a text file: that which the names in its first line suggest."""
    from pandas.io.common import get_handle

    with get_handle(path, "r", encoding="utf-8", compression="infer") as opened:
        line = opened.handle.readline()
    if not line.strip():
        what = "its first line is empty" if line else "it is empty"
        raise UserError(f"{path.name} cannot be read as a table: {what}; the first line names the columns.")
    # A header of one column: a letter of it could pass for the separator.
    return "," if _WORD.fullmatch(line.strip()) else csv.Sniffer().sniff(line).delimiter


def _parquet(path: Path) -> Any:
    """Return a Parquet file as pandas reads it, if it fits into memory."""
    import pandas as pd
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        metadata = file.metadata
        _check_names(list(map(str, file.schema_arrow.names)), path)
        cells = metadata.num_rows * metadata.num_columns
        check_memory(COPIES * 8 * cells, f"{path.name}, {metadata.num_rows:,} rows,", _INSTEAD)
    return pd.read_parquet(path).reset_index(drop=True)  # messages name rows by their place


def _check_text(path: Path) -> None:
    """Refuse a text, compressed or not, that does not fit into memory when it is parsed."""
    from pandas.io.common import get_handle

    size, limit = path.stat().st_size, int(min(available() / _BYTES, sys.maxsize))
    if path.suffix.lower() not in (".csv", ".tsv", ".txt"):
        size = 0
        with get_handle(path, "rb", compression="infer", is_text=False) as opened:
            while size <= limit and (part := opened.handle.read(1 << 20)):
                size += len(part)
    if size > limit:
        raise UserError(
            f"{path.name} holds more than {in_bytes(limit)} of text, {_BYTES} times which is all the memory that is "
            f"free; {_INSTEAD}."
        )


def _check_header(names: Sequence[str], path: Path) -> None:
    """Refuse a first line of data: half of its values are numbers with a fraction, which are no names of columns."""
    fractions = [name for name in names if _is_fraction(name)]
    if fractions and 2 * len(fractions) >= len(names):
        raise UserError(
            f"{path.name}: its first line has {fractions[0]} and other numbers, not the names of the columns; write a "
            "line of names before it."
        )


def _is_fraction(text: str) -> bool:
    """Return whether a text is a number with a decimal point or an exponent."""
    try:
        return math.isfinite(float(text)) and not text.strip().lstrip("+-").isdecimal()
    except ValueError:
        return False


def _check_names(names: Sequence[str], path: Path) -> None:
    """Refuse two columns of the same name."""
    repeated = [name for name, times in Counter(names).items() if times > 1]
    if repeated:
        raise UserError(
            f"{path.name} has several columns named '{repeated[0]}'; rename them{_of_data(repeated[0])}."
        )


def _of_data(name: str) -> str:
    """Return what else a repeated name may mean: a number is one of the first row of data."""
    return ", or write a line of names first if the file has none" if is_number_text(name) else ""
