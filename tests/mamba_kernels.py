"""A tiny hybrid of Mamba-2 and attention layers, and plain stand-ins for the kernels that need a GPU.

The kernels keep documents of a row apart by `seq_idx`; the stand-ins do what they are documented to do, place by place.
"""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def conv_by_document(x, weight, bias=None, activation=None, seq_idx=None, **_):
    """Stand in for the causal convolution kernel: a place sees only places of its own document. x: (B, C, L)."""
    width, length = weight.shape[-1], x.shape[-1]
    out = torch.zeros_like(x)
    for back in range(width):
        part = torch.nn.functional.pad(x, (back, 0))[..., :length] * weight[:, width - 1 - back][None, :, None]
        if seq_idx is not None:
            before = torch.nn.functional.pad(seq_idx, (back, 0), value=-1)[:, :length]
            part = part * (before == seq_idx)[:, None]
        out = out + part
    out = out if bias is None else out + bias[None, :, None]
    return torch.nn.functional.silu(out) if activation == "silu" else out


def scan_by_document(x, dt, decay_rate, into, out_of, *, D=None, dt_bias=None, seq_idx=None, dt_limit=None, **_):  # noqa: N803
    """Stand in for the scan kernel: the state begins anew with each document. x: (B, L, heads, width)."""
    dt = torch.clamp(torch.nn.functional.softplus(dt + dt_bias), *(dt_limit or (0.0, np.inf)))
    into, out_of = (m.repeat_interleave(x.shape[2] // m.shape[2], dim=2) for m in (into, out_of))
    state = torch.zeros(x.shape[0], x.shape[2], x.shape[3], into.shape[-1])
    out = []
    for i in range(x.shape[1]):
        if seq_idx is not None and i:
            state = state * (seq_idx[:, i] == seq_idx[:, i - 1])[:, None, None, None]
        decay = torch.exp(dt[:, i] * decay_rate)[..., None, None]
        state = state * decay + (dt[:, i, :, None] * x[:, i])[..., None] * into[:, i, :, None]
        out.append((state * out_of[:, i, :, None]).sum(-1) + D[:, None] * x[:, i])
    return torch.stack(out, 1)


def build_mamba(attention, vocab=300):
    """Build a hybrid of Mamba-2 and attention layers: Mamba2ForCausalLM itself drops `seq_idx` on the way."""
    torch.manual_seed(0)
    config = transformers.BambaConfig(
        vocab_size=vocab,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
        attn_layer_indices=[1],
        attn_rotary_emb=16,
        mamba_n_heads=4,
        mamba_d_head=32,
        mamba_n_groups=2,
        mamba_d_state=8,
        mamba_chunk_size=16,
    )
    config._attn_implementation = attention
    return transformers.BambaForCausalLM(config).eval()


def use_stand_ins(monkeypatch):
    """Put the stand-ins in the places of the kernels."""
    module = transformers.models.bamba.modeling_bamba
    monkeypatch.setattr(module, "causal_conv1d_fn", conv_by_document)
    monkeypatch.setattr(module, "mamba2_chunk_scan", scan_by_document)
