"""Splits a GGUF file as llama.cpp's own tool does: only the first part says what the model is."""

from __future__ import annotations

from pathlib import Path

import gguf

COUNT = gguf.GGUFValueType.UINT16


def split(source: Path, folder: Path, n_parts: int = 3) -> list[Path]:
    """Write the parts of `source` to `folder`; the last tensors of the file are in the last one."""
    reader = gguf.GGUFReader(source)
    size = -(-len(reader.tensors) // n_parts)
    paths = []
    for part in range(n_parts):
        path = folder / f"{source.stem}-{part + 1:05d}-of-{n_parts:05d}.gguf"
        writer = gguf.GGUFWriter(path, "")
        writer.kv_data[0].clear()
        if part == 0:
            for key, field in reader.fields.items():
                if not key.startswith("GGUF."):
                    element = field.types[-1] if len(field.types) > 1 else None
                    kind = field.types[0]
                    writer.add_key_value(key, field.contents(), kind, sub_type=element)
        for key, number in (("no", part), ("count", n_parts)):
            writer.add_key_value(f"split.{key}", number, COUNT)
        writer.add_key_value("split.tensors.count", len(reader.tensors), gguf.GGUFValueType.INT32)
        for tensor in reader.tensors[part * size : (part + 1) * size]:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        paths.append(path)
    return paths
