"""Tests of check_layers.py, each on a small tree of its own: python3 -m unittest test_check_layers.py."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import check_layers

TABLE = """
```mermaid
flowchart TB
  top --> base
  part["base/part"] --> base
```
<!-- layers -->
| room | may include | its one job |
| --- | --- | --- |
| `include/dendrite` | – | the API |
| base | – | below |
| `base/part` | base | a room in a room |
| top | base, `include/dendrite` | above |
| tests | anything | look inside |
<!-- /layers -->
"""

# What the table and the picture ask for, and nothing that they forbid.
GOOD = {
    "docs/architecture.md": TABLE,
    "include/dendrite/api.h": "#include <vector>\n",
    "src/base/base.h": "",
    "src/base/base.cpp": '#include "base/base.h"\n',
    "src/base/part/part.h": '#include "base/base.h"\n',
    "src/top/top.h": '#include <dendrite/api.h>\n  # include "base/base.h"\n',
    "tests/any_test.cpp": '#include "base/part/part.h"\n#include "top/top.h"\n',
}


def circle(*units):
    """Headers of the room `top`, each of which includes the next, and the last the first."""
    following = units[1:] + units[:1]
    return {f"src/top/{unit}.h": f'#include "top/{other}.h"\n' for unit, other in zip(units, following)}


class CheckLayers(unittest.TestCase):
    def problems(self, files):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in {**GOOD, **files}.items():
                path = pathlib.Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            return check_layers.check(pathlib.Path(folder))[0]

    def test_tree_that_keeps_to_its_table(self):
        self.assertEqual(self.problems({}), [])

    def test_include_that_is_not_granted(self):
        for suffix in ("h", "cpp", "inl", "cu", "cuh"):
            self.assertEqual(self.problems({f"src/base/up.{suffix}": '\n#include "top/top.h"\n'})[0],
                             f"src/base/up.{suffix}:2: `base` may not include `top`")

    def test_public_header_that_includes_the_inside(self):
        self.assertIn("include/dendrite/api.h:1: `include/dendrite` may not include `base`",
                      self.problems({"include/dendrite/api.h": '#include "base/base.h"\n'}))

    def test_room_in_a_room_is_no_part_of_it(self):
        self.assertIn("src/base/base.h:1: `base` may not include `base/part`",
                      self.problems({"src/base/base.h": '#include "part/part.h"\n'}))
        self.assertIn("src/top/top.h:3: `top` may not include `base/part`",
                      self.problems({"src/top/top.h": GOOD["src/top/top.h"] + '#include "base/part/part.h"\n'}))

    def test_room_three_folders_down(self):
        deep = {"src/base/part/deep/deep.h": '#include "base/part/part.h"\n'}
        self.assertEqual(self.problems(deep), [])
        table = TABLE.replace("| top |", "| `base/part/deep` | `base/part` | below that |\n| top |")
        self.assertEqual(self.problems({**deep, "docs/architecture.md": table}), [])
        self.assertEqual(self.problems({**deep, "docs/architecture.md": table,
                                        "src/base/part/part.cpp": '#include "base/part/deep/deep.h"\n'})[0],
                         "src/base/part/part.cpp:1: `base/part` may not include `base/part/deep`")

    def test_rooms_that_include_each_other(self):
        table = TABLE.replace("| base | – |", "| base | `base/part` |")
        self.assertEqual(self.problems({"docs/architecture.md": table,
                                        "src/base/base.cpp": '#include "base/part/part.h"\n'}),
                         ["rooms include each other: base, base/part"])

    def test_room_that_is_not_in_the_table(self):
        self.assertEqual(self.problems({"src/cellar/wine.h": ""}), ["room `cellar` is not in the table"])

    def test_grant_that_nothing_uses(self):
        self.assertEqual(self.problems({"src/top/top.h": '#include "base/base.h"\n'}),
                         ["`top` does not include `include/dendrite`: take the grant back"])

    def test_arrow_that_is_not_granted(self):
        picture = TABLE.replace("  top --> base\n", "  top --> base\n  top --> part\n")
        self.assertEqual(self.problems({"docs/architecture.md": picture}),
                         ["the picture has top --> base/part, which the table does not grant"])

    def test_three_units_may_need_each_other(self):
        self.assertEqual(self.problems(circle("a", "b", "c")), [])

    def test_four_units_in_a_circle(self):
        self.assertEqual(self.problems(circle("a", "b", "c", "d")),
                         ["4 units in a circle:", "  top/a -> top/b", "  top/b -> top/c", "  top/c -> top/d",
                          "  top/d -> top/a"])

    def test_circle_closed_by_a_source_file(self):
        chain = {"src/top/a.h": "", "src/top/a.cpp": '#include "top/b.h"\n',
                 "src/top/b.h": '#include "top/c.h"\n', "src/top/c.h": '#include "top/d.h"\n',
                 "src/top/d.h": '#include "top/a.h"\n'}
        self.assertEqual(self.problems(chain)[0], "4 units in a circle:")

    def test_circle_closed_by_another_source_of_a_class(self):
        chain = {"src/top/a.h": "struct A {\n  int f();\n};\n",
                 "src/top/of_a.cpp": '#include "top/b.h"\nint A::f() {\n  return 0;\n}\n',
                 "src/top/b.h": '#include "top/c.h"\n', "src/top/c.h": '#include "top/d.h"\n',
                 "src/top/d.h": '#include "top/a.h"\n'}
        self.assertEqual(self.problems(chain)[0], "4 units in a circle:")
        chain["src/top/of_a.cpp"] = '#include "top/b.h"\nint f() {\n  return A().f();\n}\n'
        self.assertEqual(self.problems(chain), [])


if __name__ == "__main__":
    unittest.main()
