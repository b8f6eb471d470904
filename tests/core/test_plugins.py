import pytest

from fedwarden.core import plugins, registry
from fedwarden.core.errors import ConfigError

RULE = "def {name}():\n    pass\n"


@pytest.fixture
def folders(tmp_path, monkeypatch, forgetful):
    """A current folder and one beside it, each with modules."""
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
        (folder / f"only_{folder.name}.py").write_text(RULE.format(name=folder.name))
    monkeypatch.chdir(here)
    return here, there


def test_a_module_is_looked_up_beside_a_file_and_without_one_in_the_current_folder(folders):
    _, there = folders
    assert plugins.load("only_here").here is registry.lookup("rule", "only_here:here")
    assert plugins.load("only_there:there", there).there is registry.lookup("rule", "only_there:there")


def test_a_module_may_be_given_as_its_file(folders):
    assert plugins.load("../there/only_there.py").__name__ == "only_there"
    assert plugins.load("only_here.py", folders[1]).__name__ == "only_here"


def test_the_options_that_load_a_module_again_work_in_the_current_folder(folders, monkeypatch):
    plugins.load("only_here"), plugins.load("only_there", folders[1])
    assert plugins.options(["only_here", "only_there", "a b"]) == (
        " --import only_here --import ../there/only_there.py --import 'a b'"
    )


def test_a_module_that_is_nowhere_says_where_it_was_looked_up(folders):
    with pytest.raises(ConfigError, match=r"cannot import 'only_there', which --import asks for: .*looked up in"):
        plugins.load("only_there")


def test_what_ones_own_component_is_called_with_is_tried_first_and_its_errors_have_a_place(folders):
    here, _ = folders
    (here / "only_here.py").write_text("class Short:\n    def __call__(self, scores):\n        return scores[9]\n")
    short = plugins.load("only_here").Short
    with pytest.raises(ConfigError, match=r"rule 'only_here:Short': too many .*; expected __call__\(scores, test\)"):
        registry.make("rule", "only_here:Short")
    with pytest.raises(IndexError) as caught:
        short()([])
    assert registry.blamed(caught.value) == "IndexError: list index out of range (only_here.py, line 3)"
    assert registry.blamed(ValueError("elsewhere")) is None
