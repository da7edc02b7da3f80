"""Models with chat templates of a test's choosing."""

from __future__ import annotations

from pathlib import Path

import gguf

TEMPLATE = "tokenizer.chat_template"


def with_template(source: Path, target: Path, template: str) -> Path:
    """A copy of the GGUF file `source` with another chat template."""
    reader = gguf.GGUFReader(source)
    architecture = reader.get_field("general.architecture")
    assert architecture is not None
    writer = gguf.GGUFWriter(target, architecture.contents())
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in ("general.architecture", TEMPLATE):
            continue
        kind = field.types[0]
        within = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(key, field.contents(), kind, sub_type=within)
    writer.add_chat_template(template)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target
