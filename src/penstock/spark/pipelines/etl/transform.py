"""Stage `transform`: applies a user's SQL query or Python function.

SQL reads the table `rows`; a function takes and returns a DataFrame. Both are applied to the stream itself:
they can use all operations that Spark supports on streams, and Spark rejects the operations that it does not
support.

A column `_error` in the result gives the reason why a row is bad: such rows become dead letters.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkException

from penstock.errors import CommandFailed
from penstock.spark.payload.dead_letters import DEAD_LETTER_COLUMN
from penstock.spark.pipelines.common.query_run import reason
from penstock.spark.pipelines.etl.rows import dead_letter_column, to_json
from penstock.spark.pipelines.etl.spec import EtlSpec, PythonFunction, SqlQuery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

VIEW: Final = "rows"
ERROR_COLUMN: Final = "_error"


def apply_transform(rows: "DataFrame", spec: EtlSpec) -> "DataFrame":
    """Return the transformed rows, with `_error` if the user's code sets it."""
    match spec.transform:
        case None:
            return rows
        case SqlQuery(text):
            try:
                rows.createOrReplaceTempView(VIEW)
                return rows.sparkSession.sql(text)
            except PySparkException as problem:
                raise CommandFailed(f"{spec.file}: [transform] sql: {reason(problem)}") from problem
        case PythonFunction() as place:
            return _apply_function(load_function(place, spec), rows, spec)


def _apply_function(function: Callable[..., Any], rows: "DataFrame", spec: EtlSpec) -> "DataFrame":
    from pyspark.sql import DataFrame

    where = f"{spec.file}: [transform] python: {function.__name__}"
    try:
        result = function(rows)
    except PySparkException as problem:
        raise CommandFailed(f"{where}: {reason(problem)}") from problem
    if not isinstance(result, DataFrame):
        raise CommandFailed(f"{where} gave a {type(result).__name__} and must give a DataFrame")
    return result


def load_function(place: PythonFunction, spec: EtlSpec) -> Callable[..., Any]:
    """Import the user's function. Its own exceptions are not caught: the user needs the trace."""
    where = f"{spec.file}: [transform] python"
    try:
        module = _module(place)
    except (ImportError, SyntaxError) as problem:
        raise CommandFailed(
            f"{where}: {place.file or place.module} cannot be imported: {problem}"
        ) from problem
    function = getattr(module, place.function, None)
    if not callable(function):
        raise CommandFailed(f"{where}: {place.file or place.module} has no function {place.function}")
    return function  # type: ignore[no-any-return]


def _module(place: PythonFunction) -> Any:
    if place.file is None:
        return importlib.import_module(place.module)
    from pyspark import cloudpickle

    found = importlib.util.spec_from_file_location(place.module, place.file)
    assert found is not None, "the name ends with .py"
    assert found.loader is not None, "such a file has a loader"
    module = importlib.util.module_from_spec(found)
    # Registered before it runs, as an import does: decorators such as dataclass look the module up.
    sys.modules[place.module] = module
    found.loader.exec_module(module)
    cloudpickle.register_pickle_by_value(module)  # executors do not have the file
    return module


def with_errors_as_dead_letters(rows: "DataFrame", spec: EtlSpec) -> "DataFrame":
    """Convert `_error` to `deadLetter`; without that column, no row is bad."""
    from pyspark.sql import functions as f

    if ERROR_COLUMN not in rows.columns:
        return rows
    plain = rows.drop(ERROR_COLUMN)
    nothing = f.lit(None).cast("binary")
    letter = dead_letter_column(
        rows[ERROR_COLUMN], "transform", spec.dead_letters, nothing, to_json(plain), {}
    )
    return rows.withColumn(DEAD_LETTER_COLUMN, letter).drop(ERROR_COLUMN)
