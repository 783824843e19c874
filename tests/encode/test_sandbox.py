"""Templates of odd steps give what jinja's own sandbox gives, or its refusal in the same words."""

from collections import OrderedDict, UserDict

import pytest
from transformers.utils.chat_template_utils import _compile_jinja_template

from thalweg.encode.template import Template, TemplateRefusal, unmark

STEPS = {
    "entries": "{{ x.a }}{{ x['a'] }}{{ x.get('b', 1) }}{{ x['items'] is defined }}{{ x.items is callable }}",
    "absent": "{{ x.none }}{{ x.none is defined }}{{ x.none or 'e' }}{{ x['none'] | default('d') }}",
    "absent of absent": "{{ x.none.more }}",
    "absent by item": "{{ x['none']['more'] }}",
    "texts": "{{ t.strip() }}{{ t.split(',')[0].upper() }}{{ t.startswith(('a', ' ')) }}{{ t.strip(' a') }}",
    "methods": "{{ t.upper is callable }}{{ t.join(['a', 'b']) }}{{ (t ~ 'q').replace('a', 'bb') }}{{ t.count(t) }}",
    "format": "{{ t.format('z') }}{{ '{0.__class__}'.format(t) }}",
    "format_map": "{{ '{a.__class__}'.format_map({'a': t}) }}",
    "no method": "{{ t.missing() }}",
    "method of a dict": "{{ x.strip() }}{{ x['strip'] }}",
    "classes": "{{ t.__class__ }}{{ t['__class__'] }}{{ x.__class__.__mro__ }}",
    "changed list": "{{ l.append(1) }}",
    "changed dict": "{{ x.update({'a': 2}) }}",
    "places": "{{ l[0] }}{{ l[9] }}{{ l.a }}{{ l['a'] is defined }}{{ 'a'.upper() }}{{ t.strip(none) }}",
    "namespace": "{% set n = namespace(a=1, f=t) %}{% for c in t %}{% set n.a = n.a + 1 %}{% endfor %}{{ n.a }}"
    "{{ n.f.strip() }}{{ n.absent is defined }}{{ n.__init__ is defined }}",
    "loop": "{% for c in l %}{{ loop.index }}{{ loop.last }}{{ loop.cycle('a', 'b') }}{{ loop.previtem }}"
    "{{ loop.absent is defined }}{{ loop.length }}{% endfor %}",
    "macro": "{% macro m(a, self=1, context='c') %}{{ a }}{{ self }}{{ context }}{{ caller is defined }}{% endmacro %}"
    "{{ m(t) }}{{ m(t, self=2, context=3) }}{{ m(a=t, self='s') }}{% call m(1) %}in{% endcall %}",
    "macro of much": "{% macro m() %}{{ x.a.strip() if x.a is string else x.a }}{{ varargs }}{{ kwargs }}{% endmacro %}"
    "{% for c in l %}{{ m(1, k=t.strip()) }}{% endfor %}",
    "names from outside": "{% for c in t %}{{ x[c] }}{{ x[c] is defined }}{{ c.isalpha() }}{% endfor %}",
}  # fmt: skip


class Word(str):
    """Text whose method is its own."""

    __slots__ = ()

    def strip(self, *_):
        return "own"


def outcome(render):
    try:
        return render()
    except Exception as error:
        return error


@pytest.mark.parametrize("steps", STEPS)
def test_short_ways_lead_where_the_sandbox_does(steps):
    source = STEPS[steps]
    for x in ({"a": "b", "strip": "s", " ": 0}, {}, {"a": {"b": 1}}, OrderedDict(a="b"), UserDict(a="b")):
        for t in (" ab,c ", Word(" ab "), 3):
            more = {"x": x, "t": t, "l": [1, "a"]}
            theirs = outcome(lambda: _compile_jinja_template(source).render(messages=[], tools=None, **more))  # noqa: B023
            ours = outcome(lambda: unmark(Template(source, more).render([]))[0])  # noqa: B023
            if isinstance(theirs, str):
                assert ours == theirs
            else:
                assert isinstance(ours, TemplateRefusal)
                assert str(ours) == str(theirs)
