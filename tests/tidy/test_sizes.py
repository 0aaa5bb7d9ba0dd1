"""Cap the maximum, not the average: ugliness lives in the largest one per cent."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILE_LINES_MAX = 600
API_FILE_LINES_MAX = 180  # the card and the declaration included
FUNCTION_LINES_MAX = 70
PARAMETERS_MAX = 8
FOLDER_FILES_MAX = 20
TEST_SENTENCE_CHARACTERS_MAX = 70  # after `test_`
ONE_FILE_PER_API = {"broker/apis", "protocol/messages"}

SOURCE = ROOT / "src" / "penstock"
FOLDERS = sorted(path.parent for path in SOURCE.rglob("__init__.py"))
FILES = sorted(
    path for folder in ("src", "tests", "benchmarks", "tools") for path in (ROOT / folder).rglob("*.py")
)


def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    tree = ast.parse(path.read_text())
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_files_stay_small() -> None:
    large = {relative(path): lines for path in FILES if (lines := lines_of(path)) > lines_max(path)}
    assert large == {}, "split them by what they are about"


def lines_of(path: Path) -> int:
    return path.read_text().count("\n")


def lines_max(path: Path) -> int:
    return API_FILE_LINES_MAX if relative(path).startswith("src/penstock/broker/apis") else FILE_LINES_MAX


def test_functions_stay_small() -> None:
    sizes = {
        f"{relative(path)}:{function.name}": (function.end_lineno or function.lineno) - function.lineno + 1
        for path in FILES
        for function in functions(path)
    }
    assert {name: size for name, size in sizes.items() if size > FUNCTION_LINES_MAX} == {}


def test_functions_take_few_parameters() -> None:
    counts = {
        f"{relative(path)}:{function.name}": parameters_of(function)
        for path in FILES
        if "src" in path.parts and "cli" not in path.parts
        for function in functions(path)
    }
    assert {name: count for name, count in counts.items() if count > PARAMETERS_MAX} == {}


def parameters_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    arguments = function.args
    count = len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs)
    first = arguments.args[0].arg if arguments.args else ""
    return count - (first in ("self", "cls"))


def test_folders_stay_small() -> None:
    counts = {
        relative(folder): sum(path.name != "__init__.py" for path in folder.glob("*.py"))
        for folder in FOLDERS
        if str(folder.relative_to(SOURCE)) not in ONE_FILE_PER_API
    }
    large = {folder: count for folder, count in counts.items() if count > FOLDER_FILES_MAX}
    assert large == {}, "give each of their subjects a folder"


def test_names_of_tests_stay_short() -> None:
    """A longer sentence names two behaviours, or describes instead of naming."""
    sentences = {
        f"{relative(path)}:{function.name}": len(function.name.removeprefix("test_"))
        for path in FILES
        if "tests" in path.parts
        for function in functions(path)
        if function.name.startswith("test_")
    }
    long = {name: count for name, count in sentences.items() if count > TEST_SENTENCE_CHARACTERS_MAX}
    assert long == {}
