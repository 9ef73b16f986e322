# SPDX-License-Identifier: Apache-2.0
"""Renders templates with Jinja2 as transformers sets it up: python3 oracle.py INPUT OUTPUT.

Each line of INPUT is {"template": text, "data": variables}; each line of OUTPUT is the text, or null if Jinja2 refuses.
"""
import datetime
import functools
import json
import sys

import jinja2
import jinja2.ext
import jinja2.sandbox


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

    def _text(self, caller):
        return caller()


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def strftime_now(format):
    return datetime.datetime.now().strftime(format)


environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
environment.filters["tojson"] = tojson
environment.globals["raise_exception"] = raise_exception
environment.globals["strftime_now"] = strftime_now

parse = functools.lru_cache(maxsize=1)(environment.from_string)
with open(sys.argv[1], encoding="utf-8") as lines, open(sys.argv[2], "w", encoding="utf-8") as results:
    for line in lines:
        case = json.loads(line)
        text = why = None
        try:
            text = parse(case["template"]).render(**case["data"])
            text.encode("utf-8")
        except Exception as e:  # Whatever it is, Jinja2 does not render this template.
            text, why = None, f"{type(e).__name__}: {e}"[:300]
        results.write(json.dumps({"text": text, "why": why}) + "\n")
