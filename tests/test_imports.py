"""What a process imports: nothing before it is used, and on an executor nothing of the store."""

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import timespine
from timespine.first_use import Library, import_names

ROOT = Path(timespine.__file__).parent

LIBRARIES = ("msgspec", "numpy", "pandas", "polars", "pyarrow", "pyspark", "rich", "sqlglot", "sqlite3", "typer")
"""Libraries whose import takes long, and modules of C that a process may do without."""

WITH_TABLES = ("timespine", "timespine.client.api_for_engines", "timespine.spark", "timespine.views")
"""The modules that import their names on first use."""


def loaded_by(program):
    """Run a program in a fresh process; return the modules that it has loaded at its end."""
    told = f"{program}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    return set(json.loads(ran.stdout.splitlines()[-1]))


def ours(modules):
    return {name for name in modules if name.partition(".")[0] == "timespine"}


def test_import_of_the_package_loads_no_other_module_and_no_library():
    loaded = loaded_by("import timespine")
    assert ours(loaded) == {"timespine", "timespine.first_use"}
    assert loaded.isdisjoint(LIBRARIES)


def test_errors_can_be_named_without_a_library():
    loaded = loaded_by("import timespine as ts; ts.SinceError; ts.errors.UsageError; ts.Config")
    assert loaded.isdisjoint({*LIBRARIES} - {"msgspec"})
    assert "timespine.client" not in loaded


def test_open_append_and_read_of_a_few_rows_load_no_polars_and_no_parquet(tmp_path):
    loaded = loaded_by(f"""
import timespine as ts
with ts.open({str(tmp_path / "store")!r}) as store:
    orders = store.create("orders", key={{"id": "int64"}}, value={{"at": "timestamp[UTC]", "total": "double"}})
    orders.append([{{"id": 1, "at": None, "total": 2.0}}])
    orders.upsert([{{"id": 1, "at": None, "total": 3.0}}])
    assert store.names() == ["orders"] and orders.snapshot().to_pylist()[0]["total"] == 3.0
""")
    assert loaded.isdisjoint({"polars", "pyarrow.parquet", "pyspark", "sqlglot", "typer"})


def test_a_first_lookup_in_blobs_loads_no_polars_and_no_parquet(tmp_path):
    """They take several times as long to import as the lookup takes."""
    with timespine.open(tmp_path / "store") as store:
        numbers = store.create("numbers", key={"n": "int64"}, value={"text": "string"})
        numbers.append([{"n": n, "text": f"text {n}"} for n in range(5000)])
        assert numbers.inspect().batches[0].size > timespine.Config().inline_part_bytes
    loaded = loaded_by(f"""
import timespine as ts
with ts.open({str(tmp_path / "store")!r}) as store:
    assert store.collection("numbers").lookup({{"n": 7}}).column("text").to_pylist() == ["text 7"]
""")
    assert loaded.isdisjoint({"polars", "pyarrow.parquet", "pyspark", "sqlglot", "typer"})


def test_list_and_help_of_the_command_load_no_polars_and_no_parquet(tmp_path):
    timespine.open(tmp_path).close()
    for arguments in (["--help"], ["list", str(tmp_path)]):
        loaded = loaded_by(f"""
import contextlib, sys
from timespine.cli import main
sys.argv[1:] = {arguments!r}
with contextlib.suppress(SystemExit):
    main()
""")
        assert loaded.isdisjoint({"polars", "pyarrow.parquet", "pyspark", "sqlglot"}), arguments


def test_process_in_which_spark_looks_for_the_format_loads_no_store_and_no_arrow():
    pytest.importorskip("pyspark")
    loaded = loaded_by("import pyspark_timespine")
    assert loaded.isdisjoint({"numpy", "pandas", "polars", "pyarrow", "sqlite3"})
    assert len(ours(loaded)) <= 22, sorted(ours(loaded))


def test_task_that_reads_loads_neither_catalog_nor_commits_nor_maintenance():
    pytest.importorskip("pyspark")
    loaded = loaded_by("import timespine.spark.data_source, timespine.spark.read.read_task")
    apart = ("timespine.client.catalog", "timespine.client.commit", "timespine.client.maintenance")
    assert {name for name in loaded if name.startswith(apart)} == set()
    assert loaded.isdisjoint({"polars", "timespine.client.store", "timespine.client.write"})
    assert len(ours(loaded)) <= 158, sorted(ours(loaded))


@pytest.mark.parametrize("name", WITH_TABLES)
def test_every_exported_name_is_there_and_is_the_one_that_type_checkers_see(name):
    pytest.importorskip("pyspark")
    module = importlib.import_module(name)
    assert {each for each in module.__all__ if not hasattr(module, each)} == set()
    for_checkers = {
        each.asname or each.name: (node.module, each.name)
        for block in ast.parse(Path(module.__file__).read_text()).body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for each in node.names
    }
    assert set(module._FROM) & set(module.__all__) == set(module.__all__) & set(for_checkers)
    for each in set(module._FROM) & set(for_checkers):
        path, inner = for_checkers[each]
        assert getattr(module, each) is getattr(importlib.import_module(path), inner), each


def test_dir_lists_every_name_before_it_is_imported():
    told = "import timespine; print(set(dir(timespine)) >= {*timespine.__all__, 'arrangement', 'spark', 'views'})"
    ran = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert ran.stdout == "True\n"


def test_package_keeps_a_name_that_it_has_imported(monkeypatch):
    monkeypatch.delitem(vars(timespine), "Frontier", raising=False)
    first = timespine.Frontier
    assert vars(timespine)["Frontier"] is first
    with pytest.raises(AttributeError, match="module 'timespine' has no attribute 'nothing'"):
        timespine.nothing  # noqa: B018


def test_name_of_a_table_may_have_another_name_in_its_module():
    get = import_names("timespine", {"earliest": "model.frontier:Frontier"})
    try:
        assert get("earliest").__name__ == "Frontier"
    finally:
        del timespine.earliest


def test_library_is_imported_by_its_first_attribute_and_keeps_it():
    library = Library("colorsys")
    before = vars(library).copy()
    assert library.rgb_to_hsv is sys.modules["colorsys"].rgb_to_hsv
    assert vars(library) == {**before, "rgb_to_hsv": sys.modules["colorsys"].rgb_to_hsv}
    with pytest.raises(AttributeError, match="nothing"):
        library.nothing  # noqa: B018


def test_no_module_imports_itself_by_way_of_others():
    """Two threads that import modules of a circle at once may see half a module."""
    graph = {name: set(imported_with(name)) for name in sources()}
    while free := {name for name, needed in graph.items() if not needed & graph.keys() - {name}}:
        graph = {name: needed for name, needed in graph.items() if name not in free}
    assert sorted(graph) == []


def sources():
    """Return the files of the layers by the names of their modules."""
    found = {
        ".".join(("timespine", *path.relative_to(ROOT).with_suffix("").parts)): path for path in ROOT.rglob("*.py")
    }
    return {name.removesuffix(".__init__"): path for name, path in found.items() if name != "timespine.__init__"}


def imported_with(name):
    """Name the modules of the library that a module imports while it is itself imported."""
    files = sources()
    for node in run_at_import(ast.parse(files[name].read_text()).body):
        modules = [each.name for each in node.names] if isinstance(node, ast.Import) else [node.module]
        for module in modules:
            inside = [f"{module}.{each.name}" for each in node.names if f"{module}.{each.name}" in files]
            yield from inside if isinstance(node, ast.ImportFrom) and inside else [module]


def run_at_import(body):
    """Find the imports in statements outside of functions, but for those that only type checkers see."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from run_at_import(node.orelse)
        elif not isinstance(node, ast.FunctionDef):
            for part in ("body", "orelse", "handlers", "finalbody"):
                yield from run_at_import(getattr(node, part, ()))
