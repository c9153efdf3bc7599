"""Every name, parameter and behavior that the documentation promises, item by item, and what proves it.

The numbers are those of the checklist of five parts: deployment (A), comparison (B), the interface of backends (C),
custom backends (D), MLX (E). An item is a program that runs here, a page, a test elsewhere, or something that a later
version will have and that raises the documented error now.
"""

import checklist_comparison
import checklist_custom
import checklist_deployment
import checklist_interface
import checklist_mlx
import pytest

PARTS = {
    "A": (81, checklist_deployment),
    "B": (123, checklist_comparison),
    "C": (64, checklist_interface),
    "D": (57, checklist_custom),
    "E": (95, checklist_mlx),
}
ITEMS = {number: item for _, part in PARTS.values() for number, item in part.ITEMS.items()}


def test_no_item_is_missing():
    assert set(ITEMS) == {f"{letter}{n}" for letter, (count, _) in PARTS.items() for n in range(1, count + 1)}


@pytest.mark.parametrize("number", ITEMS)
def test_item(number):
    _, proof = ITEMS[number]
    proof()
