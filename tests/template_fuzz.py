"""Hostile chat templates, put together at random; run as a program it renders them under limits.

``python template_fuzz.py FIRST COUNT`` prints a line for each seed: what came of its template. The
process may take 500 MB beyond what it starts with, and 15 s for a template (both by the system).
"""

from __future__ import annotations

import random
import resource
import signal
import sys

from specx.errors import ModelError
from specx.session.chat import render_chat

MOST_BYTES = 500 << 20
MOST_SECONDS = 15
MESSAGES = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi <b> \n" * 9}]

# A capital letter stands for a form of its own kind; nothing else in a form is a capital. & is a
# blank within a form.
GRAMMAR = {
    # texts
    "T": """'a' 'é\\n' ('a\\n'*100000) '%s' '%*d' '{:{}}' '{0}{0}' '' ns.x ns.x messages[-1].content
        (T+T) (T*N) (N*T) (T~A) (T%A) (T%(A,A)) T[N:N] T[::-1] T|upper T|title T|string T|trim(T)
        A|tojson A|tojson(indent=N) T|indent(N) T|indent(N,true) T|replace(T,T) T|center(N)
        L|join(T) L|map('string')|join(T) T|format(A,A) T|truncate(N) T|striptags T|escape
        T|urlencode N|filesizeformat T|pprint T|wordwrap(N) A|default(T) A|string T|capitalize
        T.replace(T,T) T.join(L) T.center(N) T.ljust(N,'é') T.zfill(N) T.format(A,A)
        T.format_map(D) T.strip(T) T.title() T.expandtabs(N) T.translate(D) T.casefold()
        N.to_bytes(N) T.encode() lipsum(N) (T|safe*N) (T|escape+T)""",
    # numbers
    "N": """1 -1 0 2 7 999 99999 5000000000 10**9 1.5 (N+N) (N-N) (N*N) (N**N) (N//N) (N%N) -N
        L|length
        T|int T|count N|round(N,'ceil') L|sum T.count(T) T.find(T) L.index(A) T|wordcount N|abs""",
    # lists
    "L": """[] [1] ns.y ns.y messages range(99999) (range(9999)|list) [A,A] (L,L) (L+L) (L*N) L[N:N]
        L[::-1] L|list T|list L|batch(N)|list L|batch(N,A)|list L|slice(N)|list L|sort L|unique|list
        L|map('upper') L|map('center',N)|list L|select('in',L)|list L|map(attribute='role')|list
        L|groupby('role') L|selectattr('role','equalto',T)|list L|reverse|list D|dictsort
        D|items|list
        D.keys()|list T.split(T) T.split() T.splitlines() T.partition(T) L|sum(start=L) L.copy()""",
    # dictionaries
    "D": "{'k':A} {T:A} messages[0] dict(a=A,b=A) dict.fromkeys(L) {(L,):1}",
    # anything
    "A": "T N L D ns x none missing (A==A) (A<A) (A&in&L) namespace(a=A,b=A) (A&and&A) A|attr('x')",
    # statements
    "S": """{{A}} {{A}}{{A}} {%set&ns.x=T%} {%set&ns.y=L%} {%set&ns.x=ns.x~ns.x%}
        {%set&ns.x=ns.x+ns.x%} {%set&ns.y=[ns.y,ns.y]%} {%set&ns.y=[ns.y]%} {%set&ns.y=ns.y+[A]%}
        {%set&ns.y={'a':ns.y,'b':ns.y}.values()|list%} {%set&ns.y=(ns.y,ns.y)%} {{{(ns.y,1):1}}}
        {%set&ns.y=[namespace(a=ns.y,b=ns.y)]%} {%set&ns.x%}{{ns.x}}{{ns.x}}{%endset%}
        {%for&a&in&range(99999)%}S{%endfor%} {%for&a&in&range(99)%}S{%endfor%}
        {%for&a&in&L%}SS{%endfor%}
        {%for&a&in&range(60)%}SSS{%endfor%} {%for&a&in&L&if&A%}S{%else%}S{%endfor%}
        {{[ns.y]==[ns.y]}}
        {%for&a&in&L&recursive%}S{{loop(L)}}{%endfor%} {%if&A%}S{%else%}S{%endif%}
        {%macro&f(z)%}S{{f(z)}}{{f(z)}}{%endmacro%}{{f(A)}} {%filter&upper%}S{%endfilter%}
        {%macro&g(z)%}{{caller()}}{{caller()}}{%endmacro%}{%call&g(A)%}S{%endcall%}
        {%generation%}S{%endgeneration%} {{cycler(*range(99999)).next()}} {%with&w=A%}S{%endwith%}
        {%block&b%}S{%endblock%}{{self.b()}} {{A&is&eq(A)}}
        {%autoescape&true%}S{%endautoescape%}""",
}  # fmt: skip
FORMS = {kind: forms.split() for kind, forms in GRAMMAR.items()}


def grown(chance: random.Random, kind: str, depth: int) -> str:
    """A form of `kind`, with its letters replaced by forms, down to `depth`."""
    forms = FORMS[kind]
    if depth <= 0:
        forms = [form for form in forms if not FORMS.keys() & set(form)] or ["1"]
    return "".join(
        grown(chance, c, depth - (kind != "A")) if c in FORMS else c for c in chance.choice(forms)
    ).replace("&", " ")


NESTS = [
    ("{% if x %}", "{% endif %}"),
    ("{% for a in messages %}", "{% endfor %}"),
    ("{{ (", ") }}"),
    ("{{ not ", " }}"),
    ("{{ [", "] }}"),
    ("{% set a %}", "{% endset %}"),
    ("{{ 1 }}", ""),
    ("{{ 1 + ", "1 }}"),
    ("{% if x %}{% elif y %}", ""),
]


def template(seed: int) -> str:
    """A template: it prints the messages and does something foolish; some nest very deeply."""
    chance = random.Random(seed)
    body = "".join(grown(chance, "S", chance.randint(1, 5)) for _ in range(chance.randint(1, 4)))
    if chance.random() < 0.1:
        opening, closing = chance.choice(NESTS)
        times = 10 ** chance.randint(1, 4)
        body = opening * times + body + closing * times
    shown = "{% for m in messages %}{{ m.content }}{% endfor %}"
    return "{% set ns = namespace(x='ab', y=[1]) %}{% set x = [1, 2] %}" + shown + body


def outcome(seed: int) -> str:
    """What came of a seed's template: text, or the error's message."""
    try:
        return f"text of {len(render_chat(template(seed), MESSAGES))} characters"
    except ModelError as error:
        if isinstance(error.__cause__, MemoryError):
            return "OUT OF MEMORY"
        return str(error)


def main() -> None:
    """Render the templates of the seeds named on the command line."""
    first, count = map(int, sys.argv[1:])
    outcome(0)
    with open("/proc/self/statm", encoding="ascii") as file:
        taken = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MOST_BYTES, resource.RLIM_INFINITY))
    for seed in range(first, first + count):
        signal.alarm(MOST_SECONDS)  # ends the process
        print(seed, outcome(seed), flush=True)
    print("done")


if __name__ == "__main__":
    main()
