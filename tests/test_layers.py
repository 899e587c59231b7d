"""Who may import whom, and what the pure layers stay away from."""

import ast
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import timespine

ROOT = Path(timespine.__file__).parent

# Modules that belong to no layer: everybody may use them, and they use only each other.
SHARED = {"errors", "hints", "ids", "config", "locks", "pool", "first_use", "libraries"}

ALLOWED = {
    "location": set(),
    "model": set(),
    "core": {"model"},
    "columnar": {"core", "model", "location"},
    "client": {"columnar", "core", "model", "location"},
    "arrangement": {"client", "columnar", "core", "model", "location"},
    "spark": {"arrangement", "client", "columnar", "core", "model", "location"},
    "views": {"spark", "client", "columnar", "core", "model", "location"},
    "cli": {"views", "spark", "arrangement", "client", "columnar", "core", "model", "location"},
    "testing": {"views", "arrangement", "client", "columnar", "core", "model", "location"},
}

# What has an effect, or depends on one: the pure layers must not even be able to name it.
IMPURE = {
    *("asyncio", "concurrent", "contextvars", "datetime", "fcntl", "http", "io", "logging", "multiprocessing"),
    *("os", "pathlib", "pickle", "queue", "random", "secrets", "select", "shutil", "signal", "socket", "sqlite3"),
    *("ssl", "subprocess", "sys", "tempfile", "threading", "time", "urllib", "uuid"),
}
PURE_BUILTINS_ONLY = {"open", "print", "input", "exec", "eval", "compile", "__import__", "breakpoint"}


def modules(layer):
    return sorted((ROOT / layer).rglob("*.py"))


def imports(path):
    """Every module that a file imports, absolute; (timespine layer or None, top-level name).

    A bridge to a layer above, client/lazy_*.py, may name types of it: what only type checkers import does not count.
    """
    tree = ast.parse(path.read_text())
    if path.name.startswith("lazy_"):
        tree.body = [each for each in tree.body if not _is_for_type_checkers(each)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield name.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module == "timespine":
                for name in node.names:
                    yield f"timespine.{name.name}"
            else:
                yield node.module


def _is_for_type_checkers(node):
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


@pytest.mark.parametrize("layer", sorted(ALLOWED))
def test_a_layer_imports_only_what_lies_below_it(layer):
    for path in modules(layer):
        for name in imports(path):
            if name.startswith("timespine."):
                used = name.split(".")[1]
                assert used in {layer} | SHARED | ALLOWED[layer], f"{path.relative_to(ROOT)} imports {name}"


def test_any_stands_in_the_client_only_in_aliases_that_say_why():
    for path in modules("client"):
        body = ast.parse(path.read_text()).body
        aliases = [
            each for each in body if isinstance(each, ast.AnnAssign) and ast.unparse(each.annotation) == "TypeAlias"
        ]
        found = {id(node) for node in ast.walk(ast.Module(body, [])) if isinstance(node, ast.Name) and node.id == "Any"}
        named = {id(node) for alias in aliases for node in ast.walk(alias)}
        assert found <= named, f"{path.relative_to(ROOT)} uses Any outside of an alias"


# What Spark and views may use of the client: what users have, and the interface for engines.
FOR_ENGINES = {"arguments.argument_types", "collection", "api_for_engines", "opening.open_store", "store"}


@pytest.mark.parametrize("layer", ["spark", "views"])
def test_an_engine_stands_on_the_interface_for_engines(layer):
    for path in modules(layer):
        for name in imports(path):
            if name.startswith("timespine.client"):
                module = name.removeprefix("timespine.client.")
                is_for_engines = any(f"{module}.".startswith(f"{each}.") for each in FOR_ENGINES)
                assert is_for_engines, f"{path.relative_to(ROOT)} imports {name}"


def test_every_name_of_the_interface_for_engines_has_a_user_above():
    interface = "timespine.client.api_for_engines"
    used = {
        name.name
        for layer in ("arrangement", "spark", "views", "cli")
        for path in modules(layer)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == interface
        for name in node.names
    }
    assert used == set(importlib.import_module(interface).__all__)


@pytest.mark.parametrize("layer", ["spark", "views", "cli"])
def test_what_a_collection_hides_is_asked_for_by_a_function(layer):
    hidden = {"_handle", "_plan", "_wanted", "_held", "_steps", "_leased", "_context", "_catalog"}
    of_pyspark = {("views/spark_engine/frames.py", "_plan")}  # the plan of a DataFrame
    for path in modules(layer):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in hidden:
                if (str(path.relative_to(ROOT)), node.attr) in of_pyspark:
                    continue
                is_own = isinstance(node.value, ast.Name) and node.value.id == "self"
                assert is_own, f"{path.relative_to(ROOT)}:{node.lineno} uses {node.attr}"


# What the packages inside of a layer may use of each other. Modules at the top of a layer may use all of them.
INSIDE = {
    "core": {
        "arrangement": set(),
        "spine": set(),
        "encoding": {"spine"},
        "transitions": {"spine", "encoding"},
        "protocols": {"arrangement", "spine", "encoding", "transitions"},
    },
    "columnar": {
        "schema": set(),
        "ingest": {"schema"},
        "kernels": {"schema"},
        "parts": {"schema", "kernels"},
        "merge": {"schema", "kernels", "parts", "scan", "write"},
        "predicate": {"schema", "kernels", "parts"},
        "scan": {"schema", "ingest", "kernels", "parts", "predicate"},
        "write": {"schema", "kernels", "parts"},
    },
    "client": {
        "arguments": set(),
        "commit": set(),
        "load": set(),
        "read": {"arguments", "commit"},
        "maintenance": {"commit"},
        "catalog": {"arguments", "commit"},
        "diagnostics": {"arguments"},
        "backup": {"arguments", "commit", "read", "catalog", "opening"},
        "write": {"arguments", "commit", "load", "read", "catalog"},
        "opening": {"commit", "read", "maintenance", "catalog"},
    },
    "arrangement": {
        "batch": set(),
        "read": {"batch"},
        "spine": {"batch", "read"},
        "follow": {"batch", "read", "spine"},
    },
    "views": {
        "plan": set(),
        "engine": {"plan"},
        "spark_engine": {"plan", "engine"},
        "sql": {"plan", "engine", "spark_engine", "refresh"},
        "follow": {"refresh"},
        "every": {"plan", "engine"},
        "refresh": {"plan", "engine", "spark_engine", "every"},
    },
    "spark": {"setup": set(), "read": {"setup"}, "write": {"setup"}, "stream": {"write"}},
    "cli": {"input": set(), "output": {"input"}, "commands": {"input", "output"}},
}


@pytest.mark.parametrize("layer", sorted(INSIDE))
def test_a_package_inside_of_a_layer_uses_only_those_before_it(layer):
    packages = {path.name for path in (ROOT / layer).iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert packages == set(INSIDE[layer])
    for package, allowed in INSIDE[layer].items():
        for path in modules(f"{layer}/{package}"):
            for name in imports(path):
                parts = name.split(".")
                if parts[:2] == ["timespine", layer] and len(parts) > 2 and parts[2] in packages:
                    assert parts[2] in allowed | {package}, f"{path.relative_to(ROOT)} imports {name}"


def test_no_folder_has_more_files_than_a_reader_takes_in_at_a_glance():
    for folder in {path.parent for path in ROOT.rglob("*.py")}:
        files = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        assert len(files) <= 15, folder.relative_to(ROOT)


def test_no_file_has_more_lines_than_one_idea_takes():
    tests = Path(__file__).parent
    for path in (*ROOT.rglob("*.py"), *tests.rglob("test_*.py")):
        assert len(path.read_text().splitlines()) <= 500, path


def test_every_folder_is_a_known_layer():
    folders = {path.parent.relative_to(ROOT).parts[0] for path in ROOT.glob("*/*.py")}
    assert folders == set(ALLOWED)


def test_shared_modules_use_only_each_other():
    for name in SHARED:
        for used in imports(ROOT / f"{name}.py"):
            if used.startswith("timespine"):
                assert used.split(".")[1] in SHARED


@pytest.mark.parametrize("layer", ["core", "model"])
def test_pure_layers_have_no_effects_no_clock_no_randomness_no_threads(layer):
    for path in modules(layer):
        for name in imports(path):
            assert name.split(".")[0] not in IMPURE, f"{path.relative_to(ROOT)} imports {name}"
            assert name.split(".")[0] in {"timespine", "msgspec", "__future__"} or not name.startswith("_"), name
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in PURE_BUILTINS_ONLY, f"{path.relative_to(ROOT)} calls {node.func.id}"


@pytest.mark.parametrize("layer", ["core", "model"])
def test_pure_layers_depend_on_nothing_but_msgspec(layer):
    outside = {name.split(".")[0] for path in modules(layer) for name in imports(path)} - {"timespine", "__future__"}
    assert outside <= {
        "abc",
        "msgspec",
        "operator",
        "types",
        "collections",
        "dataclasses",
        "enum",
        "functools",
        "typing",
        "itertools",
        "math",
        "zlib",
    }


@pytest.mark.parametrize("layer", ["core", "model"])
def test_pure_layers_import_nothing_on_first_use(layer):
    for path in modules(layer):
        assert not {"timespine.first_use", "timespine.libraries"} & set(imports(path)), path.relative_to(ROOT)


def test_no_module_unpickles_or_evaluates():
    for path in sorted(ROOT.rglob("*.py")):
        names = set(imports(path))
        assert not names & {"pickle", "marshal", "shelve", "dill", "cloudpickle"}, path


def test_every_module_can_be_imported_and_says_what_it_is_for():
    for module in pkgutil.walk_packages([str(ROOT)], "timespine."):
        if module.name == "timespine.testing.strategies":
            continue  # needs hypothesis, which is for development only
        imported = importlib.import_module(module.name)
        if Path(imported.__file__).stat().st_size:
            assert imported.__doc__, module.name


def test_spark_is_there_when_it_is_asked_for_and_not_loaded_before():
    told = "import sys, timespine; before = 'timespine.spark' in sys.modules; print(before, timespine.spark.__name__)"
    ran = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False", "timespine.spark"]
    with pytest.raises(AttributeError, match="nothing"):
        timespine.nothing  # noqa: B018


EXTRAS = ("typer", "click", "rich", "prometheus_client", "pyspark", "obstore", "psycopg", "sqlglot")
"""Packages that only extras bring."""


def ran(program):
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


def test_importing_and_using_a_store_loads_no_package_of_an_extra(tmp_path):
    blocked = f"import sys; sys.modules.update(dict.fromkeys({EXTRAS!r}))"
    use = f"""
import timespine as ts
with ts.open({str(tmp_path / "store")!r}) as store:
    store.create("orders", key={{"id": "int64"}}).append([{{"id": 1}}])
    print(store.metrics()["commands failed"], store["orders"].snapshot().to_pylist())
"""
    done = ran(blocked + use)
    assert (done.stdout, done.stderr) == ("0 [{'id': 1}]\n", "")


def test_without_their_extras_the_command_and_the_export_say_what_to_install():
    done = ran("import sys; sys.modules['typer'] = None; from timespine.cli import main; main()")
    assert done.returncode == 2
    assert done.stderr == "error: typer is not installed: pip install 'timespine[cli]'\n"
    done = ran("import sys; sys.modules['prometheus_client'] = None; import timespine.client.diagnostics.prometheus")
    assert done.stderr.splitlines()[-1].endswith("pip install 'timespine[metrics]'")
    view = "import sys, timespine; sys.modules['sqlglot'] = None; timespine.Store.view(None, 'v', sql='SELECT 1')"
    assert ran(view).stderr.splitlines()[-1].endswith("sqlglot is not installed: pip install 'timespine[views]'")


def test_without_their_extras_object_stores_and_postgresql_say_what_to_install():
    for package, call, extra in (
        ("obstore", "timespine.open('s3://bucket/x')", "s3"),
        ("psycopg", "registry.reserve_store(parse_consensus('postgresql://host/x'), '')", "postgres"),
    ):
        imports = "import timespine; from timespine.location.opening import consensus_registry as registry"
        more = "from timespine.location.opening.consensus_address import parse_consensus"
        done = ran(f"import sys; sys.modules[{package!r}] = None; {imports}; {more}; {call}")
        assert done.stderr.splitlines()[-1].endswith(f"pip install 'timespine[{extra}]'")


def test_every_error_is_in_the_tree_that_the_docstring_draws():
    from timespine import errors

    drawn = errors.__doc__
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, errors.TimespineError):
            assert f" {name} " in drawn.replace("\n", " \n") or f"{name}\n" in drawn, name


def test_files_and_functions_stay_readable():
    for path in sorted(ROOT.rglob("*.py")):
        text = path.read_text()
        assert len(text.splitlines()) <= 500, f"{path.relative_to(ROOT)} is longer than 500 lines"
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno <= 60, f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"


@pytest.mark.parametrize("package", ["timespine.spark", "timespine.views"])
def test_every_name_that_a_package_imports_at_first_use_is_there(package):
    pytest.importorskip("pyspark")
    module = importlib.import_module(package)
    assert {name for name in module._FROM if not callable(getattr(module, name))} == set()
