"""own - templates of our own for formats that vLLM has a parser for, and a folder of templates may not have.

Each shows tools, and writes calls as the parser's documentation says; what is around turns is ours.  The parser is
the name of the template, behind "own-"."""

OBJECT = '{"name": "{{ f.name }}", "arguments": {{ f.arguments|tojson }}}'
TAGGED = "{% for k, v in f.arguments.items() %}{{ '\\n' }}<parameter name=KEY>{{ v if v is string else v|tojson }}</parameter>{% endfor %}"
# Python's repr of a value, as far as Jinja has it.
REPR = ("{% macro repr(v) %}{% if v is string %}'{{ v|replace('\\\\', '\\\\\\\\')|replace(\"'\", \"\\\\'\")|replace('\\n', '\\\\n') }}'"
        "{% else %}{{ v }}{% endif %}{% endmacro %}")
PYTHON = "{{ f.name }}({% for k, v in f.arguments.items() %}{{ k }}={{ repr(v) }}{% if not loop.last %}, {% endif %}{% endfor %})"
BRACED = ("{% macro braced(v) %}{% if v is string %}<escape>{{ v }}<escape>{% elif v is mapping %}{{ '{' }}{% for k, w in v|dictsort %}"
          "{{ k }}:{{ braced(w) }}{% if not loop.last %},{% endif %}{% endfor %}{{ '}' }}{% elif v is iterable %}[{% for w in v %}"
          "{{ braced(w) }}{% if not loop.last %},{% endif %}{% endfor %}]{% else %}{{ v|tojson }}{% endif %}{% endmacro %}")
ARGUMENT = ("{% for k, v in f.arguments.items() %}<ifm|arg_key>{{ k }}</ifm|arg_key><ifm|arg_type>{{ 'string' if v is string else 'boolean' if v is "
            "boolean else 'number' if v is number else 'null' if v is none else 'object' if v is mapping else 'array' }}"
            "</ifm|arg_type><ifm|arg_value>{{ v if v is string else v|tojson }}</ifm|arg_value>{% endfor %}")


def turns(before, call, between, after, macro=""):
    return (macro + "{% if tools %}<|system|>{{ tools|tojson }}<|end|>{% endif %}{% for m in messages %}<|{{ m.role }}|>"
            "{{ m.content }}{% if m.tool_calls %}" + before + "{% for c in m.tool_calls %}{% set f = c.function %}" + call +
            "{% if not loop.last %}" + between + "{% endif %}{% endfor %}" + after + "{% endif %}<|end|>{% endfor %}"
            "{% if add_generation_prompt %}<|assistant|>{% endif %}")


# name: template
TEMPLATES = {
    "internlm": turns("", "<|action_start|><|plugin|>" + OBJECT + "<|action_end|>", "{{ raise_exception('one call') }}", ""),
    "jamba": turns("<tool_calls>[", OBJECT, ", ", "]</tool_calls>"),
    "hunyuan_a13b": turns("<tool_calls>[", OBJECT, ", ", "]</tool_calls>"),
    "longcat": turns("", "<longcat_tool_call>" + OBJECT + "</longcat_tool_call>", "{{ '\\n' }}", ""),
    "ernie45": turns("", "<tool_call>\n" + OBJECT + "\n</tool_call>", "{{ '\\n' }}", ""),
    "granite-20b-fc": turns("", "<function_call> " + OBJECT, "{{ '\\n' }}", ""),
    "xlam": turns("[TOOL_CALLS][", OBJECT, ", ", "]"),
    "olmo3": turns("<function_calls>\n", PYTHON, "{{ '\\n' }}", "\n</function_calls>", REPR),
    "pythonic": turns("[", PYTHON, ", ", "]", REPR),
    "llama4_pythonic": turns("<|python_start|>[", PYTHON, ", ", "]<|python_end|>", REPR),
    "functiongemma": turns("", "<start_function_call>call:{{ f.name }}{{ braced(f.arguments) }}<end_function_call>", "", "", BRACED),
    "dots": turns("<dots_function_call>\n", '<invoke name="{{ f.name }}">' + TAGGED.replace("KEY", '"{{ k }}"') + "\n</invoke>",
                  "{{ '\\n' }}", "\n</dots_function_call>"),
    "k2_horizon": turns("<ifm|tool_calls>", "<ifm|tool_call>{{ f.name }}" + ARGUMENT + "</ifm|tool_call>", "", "</ifm|tool_calls>"),
    "step3": turns("<｜tool_calls_begin｜>", '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{{ f.name }}">'
                   + "{% for k, v in f.arguments.items() %}<steptml:parameter name=\"{{ k }}\">{{ v if v is string else v|tojson }}"
                   "</steptml:parameter>{% endfor %}</steptml:invoke><｜tool_call_end｜>", "", "<｜tool_calls_end｜>"),
}


def write(folder):
    for name, source in TEMPLATES.items():
        (folder / f"own-{name}.jinja").write_text(source)
