"""Every node of ours stands under the resume oracle: one without it fails here."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONTRACT = {"__next__", "state", "restore"}


def nodes(folder):
    """Public classes that keep the node contract by themselves, protocols left out."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                methods = {f.name for f in node.body if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef)}
                protocol = any("Protocol" in ast.unparse(base) for base in node.bases)
                if methods >= CONTRACT and not protocol:
                    found[node.name] = path.relative_to(folder)
    return found


def proven(folder):
    """Names that stand in test modules which call the oracle."""
    names = set()
    for path in folder.rglob("test_*.py"):
        tree = ast.parse(path.read_text())
        called = {ast.unparse(n.func).rpartition(".")[2] for n in ast.walk(tree) if isinstance(n, ast.Call)}
        if "assert_resumes_everywhere" in called:
            names |= {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
            names |= {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    return names


def test_every_node_stands_under_the_resume_oracle():
    bare = {name: str(path) for name, path in nodes(ROOT / "src" / "thalweg").items()}
    for name in proven(ROOT / "tests"):
        bare.pop(name, None)
    assert bare == {}, "call thalweg.testing.assert_resumes_everywhere on them in a test"


def test_a_node_without_the_oracle_is_found_and_one_with_it_is_not(tmp_path):
    source = "class {}:\n    def __next__(self): ...\n    def state(self): ...\n    def restore(self, state): ...\n"
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text(
        "\n".join(source.format(n) for n in ("Bare", "Proven", "Abstract(Protocol)"))
    )
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text("def test_it():\n    assert_resumes_everywhere(lambda: Proven())\n")
    (tmp_path / "tests" / "test_b.py").write_text("def test_it():\n    Bare()\n")
    assert nodes(tmp_path / "src").keys() - proven(tmp_path / "tests") == {"Bare"}
