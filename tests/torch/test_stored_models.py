"""A small Llama of transformers in the formats of other programs, loaded: its logits are those of the numbers that
these formats say."""

import json
import warnings

import ml_dtypes
import numpy as np
import pytest

from tilewright import checkpoints
from tilewright.checkpoints import safetensors

torch = pytest.importorskip("torch", reason="torch is not installed: there are no layers")
twt = pytest.importorskip("tilewright.torch")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: there are no models")

from torch import nn  # noqa: E402

from tilewright.api import tensors as tensors_of  # noqa: E402
from tilewright.torch.filling import OF_LAYERS, OF_MODEL  # noqa: E402
from tilewright.torch.stored import weight_of  # noqa: E402

HIDDEN, WORDS, GROUP = 64, 96, 32
WIDE = 256              # a multiple of K-quants' blocks
RNG = np.random.default_rng(0)
IDS = torch.tensor([[1, 5, 9, 2], [3, 3, 8, 90]])
CONFIG = {"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": WORDS,
          "max_position_embeddings": 64, "tie_word_embeddings": False}


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def llama(hidden=HIDDEN):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(hidden_size=hidden, intermediate_size=2*hidden, **CONFIG)
    return transformers.LlamaForCausalLM(config).eval()


def layers(model):
    return {name: x for name, x in model.named_modules() if isinstance(x, nn.Linear) and name != "lm_head"}


def folder(model, path, method, made):
    """A checkpoint whose layers have these arrays: name → {part: array}."""
    model.config.save_pretrained(path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "quantization_config": method}))
    rest = {name: x.numpy() for name, x in model.state_dict().items() if name.rpartition(".")[0] not in made}
    safetensors.save(path / "model.safetensors", {
        **rest, **{f"{name}.{part}": x for name, parts in made.items() for part, x in parts.items()}}, {"format": "pt"})
    return path


def loaded(path):
    config = twt.Config()
    return transformers.AutoModelForCausalLM.from_pretrained(path, quantization_config=config, dtype=torch.float32)


def same(found, model, numbers, within=2e-5):
    """`found` has layers of these numbers, and the logits of the model with them."""
    for name, layer in layers(model).items():
        w = found.get_submodule(name)
        assert isinstance(w, twt.WeightLinear), name
        assert np.array_equal(w.dequantized().numpy(), numbers[name].astype(np.float32)), name
        layer.weight.data = torch.from_numpy(numbers[name].astype(np.float32))
    with torch.no_grad():
        wanted = model(IDS).logits
        assert torch.allclose(found(IDS).logits, wanted, atol=within * float(wanted.abs().max()))
        one = found(IDS[:1, :1]).logits
    assert torch.allclose(one[0, 0], wanted[0, 0], atol=within * float(wanted.abs().max()))


def quantised(layer):
    """Codes of 4 bits, scales in f16 and zero points of groups, of a layer's weight; and their numbers."""
    x = layer.weight.detach().numpy()
    groups = x.reshape(len(x), -1, GROUP)
    scales = ((groups.max(-1) - groups.min(-1)) / 15).astype(np.float16)
    wide = scales.astype(np.float32)[..., None]
    zeros = np.clip(np.rint(-groups.min(-1, keepdims=True) / wide), 1, 15)
    codes = np.clip(np.rint(groups / wide) + zeros, 0, 15)
    numbers = ((codes - zeros) * wide).reshape(x.shape)
    return codes.reshape(x.shape).astype(np.uint8), scales, zeros[..., 0].astype(np.uint8), numbers


def eight(x, order=range(8)):
    """Eight numbers along the last axis as an int32."""
    parts = x.reshape(*x.shape[:-1], -1, 8).astype(np.uint32)
    return sum(parts[..., i] << np.uint32(4*at) for at, i in enumerate(order)).astype(np.uint32).view(np.int32)


def test_gptq_with_act_order(tmp_path):
    model, made, numbers = llama(), {}, {}
    for name, layer in layers(model).items():
        order = RNG.permutation(layer.in_features)      # of inputs: that at i has group order[i] // GROUP
        layer.weight.data = layer.weight.data[:, np.argsort(order)]
        codes, scales, zeros, numbers[name] = quantised(layer)
        numbers[name] = numbers[name][:, order]
        made[name] = {"qweight": eight(codes[:, order]).T.copy(), "qzeros": eight(zeros.T - np.uint8(1)),
                      "scales": scales.T.copy(), "g_idx": (order // GROUP).astype(np.int32)}
    method = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": True, "checkpoint_format": "gptq"}
    found = loaded(folder(model, tmp_path, method, made))
    assert found.model.layers[0].mlp.up_proj.order is not None
    same(found, model, numbers)
    found.save_pretrained(tmp_path / "again")           # in tilewright's own layout
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "again")
    same(again, model, numbers)
    assert torch.equal(again(IDS).logits, found(IDS).logits)
    other = twt.load_checkpoint(llama(), tmp_path)
    same(other, model, numbers)


def test_awq(tmp_path):
    model, made, numbers = llama(), {}, {}
    for name, layer in layers(model).items():
        codes, scales, zeros, numbers[name] = quantised(layer)
        order = 0, 2, 4, 6, 1, 3, 5, 7
        made[name] = {"qweight": eight(codes.T, order), "qzeros": eight(zeros.T, order), "scales": scales.T.copy()}
    method = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True}
    same(loaded(folder(model, tmp_path, method, made)), model, numbers)


def test_fp8_by_blocks(tmp_path):
    model, made, numbers = llama(), {}, {}
    for name, layer in layers(model).items():
        weight = layer.weight.detach().numpy().astype(ml_dtypes.float8_e4m3fn)
        scales = RNG.random((-(-weight.shape[0] // 48), -(-weight.shape[1] // 32))).astype(np.float32) + 1
        numbers[name] = weight.astype(np.float32) * scales.repeat(48, 0)[:len(weight)].repeat(32, 1)
        made[name] = {"weight": weight, "weight_scale_inv": scales}
    method = {"quant_method": "fp8", "weight_block_size": [48, 32], "activation_scheme": "dynamic"}
    same(loaded(folder(model, tmp_path, method, made)), model, numbers)


def compressed(model, format, args):
    """The arrays of compressed-tensors, and the numbers that it makes of them."""
    pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    scheme, kind = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**args)), (
        BaseCompressor.get_value_from_registry(format))
    made, numbers = {}, {}
    for name, layer in layers(model).items():
        n, k = layer.weight.shape
        shape = {"group": (n, k // GROUP), "channel": (n, 1), "tensor_group": (n, k // 16)}[args["strategy"]]
        largest = layer.weight.detach().reshape(*shape, -1).abs().amax(-1)
        state = {"weight": layer.weight.detach(), "weight_scale": largest / {4: 7, 8: 127}[args["num_bits"]]}
        if args["type"] == "float":
            state["weight_scale"] = largest / 448
        if args["strategy"] == "tensor_group":
            state |= {"weight_global_scale": torch.tensor([256.0]), "weight_scale": largest / 6 * 256}
        stored = kind.compress(dict(state), scheme)
        numbers[name] = kind.decompress(dict(stored), scheme)["weight"].float().numpy()
        made[name] = {part: np.array(tensors_of.array(x.contiguous(), part)) for part, x in stored.items()}
    groups = {"group_0": {"targets": ["Linear"], "weights": args}}
    return made, numbers, {"quant_method": "compressed-tensors", "format": format, "config_groups": groups,
                           "quantization_status": "compressed", "ignore": ["lm_head"]}


INT = {"type": "int", "symmetric": True}


@pytest.mark.parametrize(("format", "args"), [
    ("pack-quantized", {**INT, "num_bits": 4, "strategy": "group", "group_size": GROUP}),
    ("int-quantized", {**INT, "num_bits": 8, "strategy": "channel"}),
    ("float-quantized", {"type": "float", "symmetric": True, "num_bits": 8, "strategy": "channel"})],
    ids=["int4", "int8", "fp8"])
def test_compressed_tensors(format, args, tmp_path):
    model = llama()
    made, numbers, method = compressed(model, format, args)
    path = folder(model, tmp_path, method, made)
    same(loaded(path), model, numbers)
    if format == "int-quantized":
        return                  # of a scheme without activations their layers would be in words
    theirs = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    same(twt.convert(theirs, skip="lm_head"), model, numbers)


def test_nvfp4(tmp_path):
    """With a scale of all numbers that is a power of two f32 has every number."""
    model = llama()
    args = {"type": "float", "symmetric": True, "num_bits": 4, "strategy": "tensor_group", "group_size": 16}
    made, _, method = compressed(model, "nvfp4-pack-quantized", args)
    path = folder(model, tmp_path, method, made)
    found = checkpoints.load(path)
    numbers = {name: found[f"{name}.weight"].dequantize() for name in made}
    same(loaded(path), model, numbers)


def test_torchao():
    pytest.importorskip("torchao", reason="torchao is not installed")
    from torchao.quantization import (
        Float8WeightOnlyConfig,
        Int4Tensor,
        Int8WeightOnlyConfig,
        IntxWeightOnlyConfig,
        PerGroup,
        quantize_,
    )
    for how in (Int8WeightOnlyConfig(), IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(GROUP)),
                Float8WeightOnlyConfig()):
        theirs, model = llama(), llama()
        quantize_(theirs, how, lambda module, name: isinstance(module, nn.Linear) and name != "lm_head")
        numbers = {name: x.weight.dequantize().numpy() for name, x in layers(theirs).items()}
        with torch.no_grad():
            wanted = theirs(IDS).logits
        found = twt.convert(theirs, skip="lm_head")
        same(found, model, numbers)
        assert torch.allclose(found(IDS).logits, wanted, atol=1e-3)
    layer = nn.Linear(128, 8)
    q, scale, added = torch.randint(-8, 8, (8, 128)), torch.rand(4, 8), torch.randn(4, 8)
    pairs = (q[:, ::2] & 15 | q[:, 1::2] << 4).to(torch.uint8).view(torch.int8)
    layer.weight = nn.Parameter(Int4Tensor(pairs, scale, added, [1, 32], torch.Size([8, 128])), requires_grad=False)
    found = twt.convert(layer)
    wanted = q.float() * scale.t().repeat_interleave(32, 1) + added.t().repeat_interleave(32, 1)
    assert torch.equal(found.dequantized(), wanted)
    q = Int4Tensor(pairs, scale, added, [1, 32], torch.Size([8, 128]), act_pre_scale=torch.ones(128))
    layer.weight = nn.Parameter(q, requires_grad=False)
    with pytest.raises(ValueError, match="Int4Tensor with act_pre_scale"):
        twt.convert(layer)


def test_torchaos_blocks():
    pytest.importorskip("torchao", reason="torchao is not installed")
    from torchao.prototype.mx_formats.mx_tensor import MXTensor
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor
    for swizzled in (False, True):
        x, layer = torch.randn(130, 256), nn.Linear(256, 130)
        for made in (MXTensor.to_mx(x, torch.float8_e4m3fn, 32, is_swizzled_scales=swizzled),
                     MXTensor.to_mx(x, torch.float4_e2m1fn_x2, 32, is_swizzled_scales=swizzled),
                     NVFP4Tensor.to_nvfp4(x, per_tensor_scale=torch.tensor(0.25), is_swizzled_scales=swizzled)):
            layer.weight = nn.Parameter(made, requires_grad=False)
            assert np.array_equal(weight_of("x", layer).dequantize(), made.dequantize().numpy())
    layer.weight = nn.Parameter(MXTensor.to_mx(x, torch.float8_e4m3fn, 64), requires_grad=False)
    with pytest.raises(ValueError, match=r"in blocks of 64: taken are .* in blocks of 32"):
        twt.convert(layer)


class TorchQuantLinear(nn.Module):
    """A layer as GPTQModel has it."""

    def __init__(self, arrays, layout=1):
        super().__init__()
        self.bits, self.group_size, self.in_features, self.out_features, self.layout = 4, GROUP, HIDDEN, HIDDEN, layout
        for name, x in arrays.items():
            self.register_buffer(name, torch.from_numpy(x))

    def qzero_format(self):
        return self.layout


class MarlinQuantLinear(TorchQuantLinear):
    pass


def test_layers_of_gptqmodel():
    linear = nn.Linear(HIDDEN, HIDDEN)
    codes, scales, zeros, numbers = quantised(linear)
    for layout in (1, 2):
        arrays = {"qweight": eight(codes).T.copy(), "qzeros": eight(zeros.T - np.uint8(layout == 1)),
                  "scales": scales.T.copy(), "bias": np.ones(HIDDEN, np.float32)}
        found = twt.convert(nn.Sequential(TorchQuantLinear(arrays, layout)))[0]
        assert np.array_equal(found.dequantized().numpy(), numbers.astype(np.float32))
        assert torch.equal(found(torch.zeros(1, HIDDEN)), torch.ones(1, HIDDEN))
    with pytest.raises(ValueError, match="0 is a MarlinQuantLinear, whose arrays are in the order of a kernel"):
        twt.convert(nn.Sequential(MarlinQuantLinear(arrays)))


def test_layers_of_transformers():
    """Its layers of fp8, and of GGUF's blocks."""
    from transformers.integrations.finegrained_fp8 import FP8Linear
    layer = FP8Linear(HIDDEN, 96, block_size=(32, 48))
    layer.weight.data = torch.randn(96, HIDDEN).to(torch.float8_e4m3fn)
    layer.weight_scale_inv.data = torch.rand(3, 2)
    wanted = layer.weight.float() * layer.weight_scale_inv.repeat_interleave(32, 0).repeat_interleave(48, 1)[:, :HIDDEN]
    assert torch.equal(twt.convert(nn.Sequential(layer))[0].dequantized(), wanted)
    gguf = pytest.importorskip("gguf", reason="gguf is not installed")
    blocks = gguf.quants.quantize(np.ones((5, HIDDEN), np.float32), gguf.GGMLQuantizationType.Q4_1)
    packed, order = nn.Module(), torch.randperm(HIDDEN)
    packed.in_features, packed.out_features, packed.ggml_type, packed.input_permutation = HIDDEN, 5, 3, order
    packed.weight, packed.bias = nn.Parameter(torch.from_numpy(blocks), requires_grad=False), None
    made = twt.convert(nn.Sequential(packed))[0]
    assert torch.equal(made.order, order)
    wanted = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType.Q4_1)
    assert np.array_equal(made.dequantized()[:, order].numpy(), wanted)


def halves_of_heads(x, heads):
    """The order of rows that GGUF's converter gives to queries and keys of llama."""
    return x.reshape(heads, 2, len(x) // heads // 2, -1).swapaxes(1, 2).reshape(x.shape)


def test_gguf(tmp_path):
    """transformers reads the same file by the package gguf."""
    gguf = pytest.importorskip("gguf", reason="gguf is not installed")
    model, file = llama(WIDE), tmp_path / "model.gguf"
    writer, types = gguf.GGUFWriter(file, "llama"), gguf.GGMLQuantizationType
    for add, x in ((writer.add_block_count, 1), (writer.add_context_length, 64), (writer.add_embedding_length, WIDE),
                   (writer.add_feed_forward_length, 2*WIDE), (writer.add_head_count, 4), (writer.add_head_count_kv, 2),
                   (writer.add_layer_norm_rms_eps, model.config.rms_norm_eps), (writer.add_vocab_size, WORDS),
                   (writer.add_rope_freq_base, 10000.0), (writer.add_rope_dimension_count, WIDE // 4)):
        add(x)
    names = {f"model.layers.0.{theirs}": f"blk.0.{name}" for name, theirs in OF_LAYERS.items()} | {
        theirs: name for name, theirs in OF_MODEL.items()}
    numbers = {}
    for name, x in model.state_dict().items():
        path, x = name.rpartition(".")[0], x.numpy()
        heads = {"q_proj": 4, "k_proj": 2}.get(path.rpartition(".")[2], 0)
        x = halves_of_heads(x, heads) if heads else x
        if x.ndim == 1:
            writer.add_tensor(f"{names[path]}.weight", x)
            continue
        if "mlp" in path:               # which the package reads and does not write
            blocks = RNG.integers(0, 256, (len(x), x.shape[1] // 256, 144), dtype=np.uint8)
            blocks[..., :4] = (RNG.random((*blocks.shape[:2], 2)) / 4096).astype(np.float16).view(np.uint8)
            kind, data = types.Q4_K, blocks.reshape(len(x), -1)
        else:
            kind = types.Q8_0 if heads else types.Q5_0
            data = gguf.quants.quantize(np.ascontiguousarray(x), kind)
        writer.add_tensor(f"{names[path]}.weight", data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = twt.load_checkpoint(llama(WIDE), file)
    assert isinstance(found.lm_head, twt.WeightLinear)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf", dtype=torch.float32)
    numbers = {name: x.weight.detach().numpy() for name, x in layers(theirs).items()}
    assert torch.equal(theirs.lm_head.weight, found.lm_head.dequantized())
    same(found, theirs, numbers)
    content = file.read_bytes()
    file.write_bytes(content.replace(b"general.architecture\x08\0\0\0\x05\0\0\0\0\0\0\0llama",
                                     b"general.architecture\x08\0\0\0\x05\0\0\0\0\0\0\0gemma"))
    with pytest.raises(ValueError, match=r"of GGUF's architecture 'gemma'.* known of llama, qwen2, qwen3"):
        twt.load_checkpoint(llama(WIDE), file)


def test_a_model_that_is_not_quantized(tmp_path):
    model = llama()
    model.save_pretrained(tmp_path)
    for options, format in (({"kind": "int8"}, "i8"), ({"kind": "int4", "group": 32, "skip": ["*.mlp.*"]}, "i4")):
        config = twt.Config(**options)
        found = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=config)
        assert found.model.layers[0].self_attn.q_proj.saved["format"] == format
        assert isinstance(found.model.layers[0].mlp.up_proj, twt.WeightLinear) == (format == "i8")
        assert isinstance(found.lm_head, nn.Linear) == (format == "i8")
        assert found.model.layers[0].self_attn.q_proj.saved["group"] == options.get("group", 0)
    with pytest.raises(ValueError, match="kind must be one of float, fp8, int8"):
        twt.Config("int3")


def test_what_does_not_fit(tmp_path):
    model = llama()
    state = {name: x.numpy() for name, x in model.state_dict().items()}
    checkpoints.save(tmp_path / "x.safetensors", {name: x for name, x in state.items() if "mlp" not in name})
    with pytest.raises(ValueError, match=r"has no weights for model.layers.0.mlp.down_proj.weight, .*gate_proj"):
        twt.load_checkpoint(llama(), tmp_path / "x.safetensors")
    checkpoints.save(tmp_path / "x.safetensors", {**state, "lm_head.weight": np.ones((3, 4))})
    with pytest.raises(ValueError, match=r"lm_head.weight has the shape \(3, 4\) in the checkpoint, and \(96, 64\)"):
        twt.load_checkpoint(llama(), tmp_path / "x.safetensors")
    q = checkpoints.Weight(checkpoints.gptq.scaled(np.ones((3, 4), np.uint8), 4, np.ones((3, 1), "f4"), None, 0))
    checkpoints.save(tmp_path / "x.safetensors", {**state, "lm_head.weight": q})
    with pytest.raises(ValueError, match=r"lm_head has the shape \(3, 4\)|lm_head.weight has the shape \(3, 4\)"):
        twt.load_checkpoint(llama(), tmp_path / "x.safetensors")
