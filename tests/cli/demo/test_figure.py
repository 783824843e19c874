"""The demo's picture: well-formed, self-contained, one dot a step."""

import xml.etree.ElementTree as ET

from thalweg.cli.demo.figure import loss_curves


def test_the_picture_is_well_formed_and_has_a_dot_for_each_step():
    picture = ET.fromstring(loss_curves([9.0, 8.5, 8.0, 7.0], [9.0, 8.5, 8.0, 7.0], 2))
    dots = [dot.attrib for dot in picture.iter("circle")]
    assert len(dots) == 4
    assert len({dot["fill"] for dot in dots[:2]} | {dots[2]["fill"]}) == 2
    heights = [float(dot["cy"]) for dot in dots]
    assert heights == sorted(heights), "a lower loss is drawn lower"


def test_no_losses_give_no_picture_and_equal_losses_no_division_by_zero():
    assert loss_curves([], [], 0) == ""
    assert ET.fromstring(loss_curves([1.0], [1.0], 0)).tag == "svg"
