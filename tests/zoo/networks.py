"""The networks: how each is made, its inputs at two sizes, and the symbolic dimensions of each input.

`NETWORKS[name] = (make, (first, second), axes)`. `make()` gives a module in evaluation mode, `first()` and `second()` a tuple of
tensors. `axes` has a dict for each input: dimension -> name.
"""
import torch

NETWORKS = {}
IMAGE = [{0: "N", 2: "H", 3: "W"}]
BATCH = [{0: "N"}]


def add(name, make, inputs, axes):
    NETWORKS[name] = (lambda: make().eval(), inputs, axes)


def normal(*shape):
    return lambda: (torch.randn(*shape),)


def images(*shapes):
    """Inputs of (batch, height, width[, channels])."""
    return tuple(normal(s[0], s[3] if len(s) > 3 else 3, s[1], s[2]) for s in shapes)


class Part(torch.nn.Module):
    """One value of what a module returns: an attribute, an item, or all tensors of a Hugging Face output."""

    def __init__(self, module, key=None, names=None, **arguments):
        super().__init__()
        self.module, self.key, self.names, self.arguments = module, key, names, arguments

    def forward(self, *inputs):
        named = dict(zip(self.names, inputs)) if self.names else {}
        out = self.module(*(() if self.names else inputs), **named, **self.arguments)
        if isinstance(out, torch.Tensor):
            return out
        if self.key is not None:
            return out[self.key]
        return tuple(v for v in out.to_tuple() if isinstance(v, torch.Tensor))


class Boxes(torch.nn.Module):
    """A detector of torchvision for one image."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, image):
        return tuple(self.module([image])[0].values())


def torchvision_model(name, shapes=((1, 224, 224), (2, 192, 256)), axes=IMAGE, wrap=lambda m: m, **options):
    def make():
        import torchvision

        return wrap(torchvision.models.get_model(name, weights=None, **options))

    add("torchvision/" + name, make, images(*shapes), axes)


for n in """densenet121 efficientnet_b1 efficientnet_v2_s mnasnet0_5 mobilenet_v3_large regnet_y_400mf regnet_x_400mf resnext50_32x4d
        shufflenet_v2_x1_0 squeezenet1_1 swin_t swin_v2_t wide_resnet50_2""".split():
    torchvision_model(n)
for n in ["googlenet", "inception_v3"]:
    torchvision_model(n, ((1, 224, 224), (2, 224, 288)), init_weights=False, aux_logits=True)
torchvision_model("maxvit_t", ((1, 224, 224), (2, 224, 224)), BATCH)
for n in ["fcn_resnet50", "lraspp_mobilenet_v3_large", "deeplabv3_resnet50"]:
    torchvision_model(n, ((1, 96, 128), (2, 65, 97)), wrap=lambda m: Part(m, "out"), weights_backbone=None)


def detector(name, **options):
    def make():
        import torchvision

        return Boxes(torchvision.models.get_model(name, weights=None, weights_backbone=None, **options))

    add("torchvision/" + name, make, (normal(3, 160, 200), normal(3, 120, 180)), [{1: "H", 2: "W"}])


detector("ssd300_vgg16")
for n in ["retinanet", "fcos", "keypointrcnn", "maskrcnn"]:
    detector(n + "_resnet50_fpn", min_size=160, max_size=256)


def video(name, shapes=((1, 3, 16, 112, 112), (2, 3, 24, 96, 128))):
    def make():
        import torchvision

        return torchvision.models.get_model(name, weights=None)

    add("torchvision/" + name, make, tuple(normal(*s) for s in shapes), [{0: "N", 2: "T", 3: "H", 4: "W"}])


video("r3d_18")
video("mc3_18")
video("r2plus1d_18")
video("s3d", ((1, 3, 16, 224, 224), (1, 3, 24, 224, 256)))
video("swin3d_t")


def timm_model(name, shapes, axes):
    def make():
        import timm

        return timm.create_model(name, pretrained=False, exportable=True)

    add("timm/" + name, make, images(*shapes), axes)


for n in """mobilevit_s edgenext_xx_small ghostnet_100 hrnet_w18_small mobileone_s0 poolformer_s12 repvit_m1 rexnet_100 selecsls42b
        tinynet_a cspdarknet53 dla34 res2net50_26w_4s resnest14d skresnet18 xception41 convmixer_768_32 inception_next_tiny
        focalnet_tiny_srf starnet_s1 mambaout_femto efficientvit_b0 convnextv2_atto lcnet_050 fastvit_t8 nf_regnet_b1 gernet_s
        eca_botnext26ts_256 hgnetv2_b0 tf_efficientnet_lite0 mixnet_s pvt_v2_b0 visformer_tiny ese_vovnet19b_dw resnetv2_50x1_bit
        rdnet_tiny""".split():
    timm_model(n, ((1, 224, 224), (2, 192, 256)), IMAGE)
for n in """coat_tiny efficientformer_l1 levit_128s mixer_s16_224 resmlp_12_224 sequencer2d_s tiny_vit_5m_224 tnt_s_patch16_224
        twins_pcpvt_small xcit_nano_12_p16_224 volo_d1_224 eva02_tiny_patch14_224 davit_tiny gcvit_xxtiny nest_tiny
        beit_base_patch16_224 cait_xxs24_224 coatnet_nano_rw_224 hiera_tiny_224 caformer_s18 convit_tiny cs3sedarknet_l dm_nfnet_f0
        dpn68 efficientformerv2_s0 efficientvit_l1 efficientvit_m0 fastvit_mci0 gcresnet33ts gmlp_s16_224 hardcorenas_a
        inception_resnet_v2 legacy_xception mobilenetv4_hybrid_medium mvitv2_tiny nasnetalarge nextvit_small pit_ti_224 pnasnet5large
        regnetz_b16 repghostnet_050 repvgg_a0 resnest26d rexnetr_200 senet154 shvit_s1 swiftformer_xs swinv2_cr_tiny_ns_224
        tf_efficientnetv2_b0 tf_mixnet_s tresnet_m vit_tiny_r_s16_p8_224 vitamin_small_224 vovnet39a""".split():
    timm_model(n, ((1, 224, 224), (2, 224, 224)), BATCH)
for n in ["halonet26t", "lambda_resnet26t", "maxxvit_rmlp_nano_rw_256", "botnet26t_256", "hieradet_small", "swinv2_tiny_window8_256"]:
    timm_model(n, ((1, 256, 256), (2, 256, 256)), BATCH)


def transformer(name, model, config, names, inputs, axes, part=None, arguments=None, **sizes):
    def make():
        import transformers

        c = getattr(transformers, config)(**sizes)
        c._attn_implementation = "eager"
        return Part(getattr(transformers, model)(c), part, names, return_dict=True, **(arguments or {}))

    add("transformers/" + name, make, inputs, axes)


def tokens(batch, length):
    return torch.randint(3, 90, (batch, length))


def text(name, family, model="Model", mask=True, arguments=None, **sizes):
    def inputs(batch, length):
        def make():
            seen = torch.ones(batch, length, dtype=torch.long)
            if batch > 1:
                seen[1, -2:] = 0
            return (tokens(batch, length), seen) if mask else (tokens(batch, length),)

        return make

    names = ["input_ids", "attention_mask"][: 2 if mask else 1]
    axes = [{0: "N", 1: "T"}] * len(names)
    transformer(name, family + model, family + "Config", names, (inputs(1, 16), inputs(3, 23)), axes, arguments=arguments, vocab_size=100, **sizes)


SMALL = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128)
for n, family in [("bert", "Bert"), ("mpnet", "MPNet"), ("ibert", "IBert")]:
    text(n, family, **SMALL)
for n, family in [("albert", "Albert"), ("electra", "Electra")]:
    text(n, family, embedding_size=32, **SMALL)
for n, family in [("convbert", "ConvBert"), ("squeezebert", "SqueezeBert"), ("roformer", "RoFormer")]:
    text(n, family, embedding_size=64, **SMALL)
text("deberta_v2", "DebertaV2", relative_attention=True, pos_att_type=["p2c", "c2p"], **SMALL)
text("distilbert", "DistilBert", dim=64, n_layers=2, n_heads=4, hidden_dim=128)
text("xlnet", "XLNet", d_model=64, n_layer=2, n_head=4, d_inner=128)
text("funnel", "Funnel", block_sizes=[1, 1], d_model=64, n_head=4, d_head=16, d_inner=128)
for n, family in [("big_bird", "BigBird"), ("mobilebert", "MobileBert"), ("yoso", "Yoso")]:
    options = dict(big_bird=dict(attention_type="original_full"), mobilebert=dict(embedding_size=32, intra_bottleneck_size=32, true_hidden_size=32))
    text(n, family, **options.get(n, {}), **SMALL)
text("modernbert", "ModernBert", pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2, **SMALL)
text("fnet", "FNet", mask=False, hidden_size=64, num_hidden_layers=2, intermediate_size=128)
text("esm", "Esm", mask_token_id=4, pad_token_id=1, position_embedding_type="rotary", **SMALL)
text("longformer", "Longformer", attention_window=8, **SMALL)
text("deberta", "Deberta", relative_attention=True, pos_att_type=["p2c", "c2p"], **SMALL)
text("flaubert", "Flaubert", emb_dim=64, n_layers=2, n_heads=4)
text("t5_encoder", "T5", "EncoderModel", d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4)
CAUSAL = dict(model="ForCausalLM", arguments=dict(use_cache=False))
text("llama", "Llama", num_key_value_heads=2, **CAUSAL, **SMALL)
text("mistral", "Mistral", num_key_value_heads=2, sliding_window=8, **CAUSAL, **SMALL)
text("gemma2", "Gemma2", num_key_value_heads=2, head_dim=16, sliding_window=8, **CAUSAL, **SMALL)
text("qwen3", "Qwen3", num_key_value_heads=2, head_dim=16, **CAUSAL, **SMALL)
text("phi", "Phi", **CAUSAL, **SMALL)
text("gpt_neox", "GPTNeoX", **CAUSAL, **SMALL)
text("bloom", "Bloom", hidden_size=64, n_layer=2, n_head=4, **CAUSAL)
text("opt", "OPT", hidden_size=64, num_hidden_layers=2, num_attention_heads=4, ffn_dim=128, word_embed_proj_dim=64, **CAUSAL)
text("gptj", "GPTJ", n_embd=64, n_layer=2, n_head=4, rotary_dim=8, **CAUSAL)
text("gpt_neo", "GPTNeo", hidden_size=64, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]], window_size=8, **CAUSAL)
text("gpt_bigcode", "GPTBigCode", n_embd=64, n_layer=2, n_head=4, **CAUSAL)
text("falcon", "Falcon", hidden_size=64, num_hidden_layers=2, num_attention_heads=4, new_decoder_architecture=False, **CAUSAL)
text("mpt", "Mpt", d_model=64, n_layers=2, n_heads=4, **CAUSAL)
text("rwkv", "Rwkv", mask=False, hidden_size=64, num_hidden_layers=2, **CAUSAL)
for n, family in [("stablelm", "StableLm"), ("olmo2", "Olmo2"), ("starcoder2", "Starcoder2"), ("nemotron", "Nemotron")]:
    text(n, family, num_key_value_heads=2, **CAUSAL, **SMALL)
text("phi3", "Phi3", num_key_value_heads=2, pad_token_id=0, **CAUSAL, **SMALL)
text("mamba", "Mamba", mask=False, hidden_size=64, num_hidden_layers=2, state_size=8, **CAUSAL)


def two_texts(name, family, **sizes):
    def inputs(batch, source, target):
        return lambda: (tokens(batch, source), torch.ones(batch, source, dtype=torch.long), tokens(batch, target))

    names = ["input_ids", "attention_mask", "decoder_input_ids"]
    axes = [{0: "N", 1: "T"}, {0: "N", 1: "T"}, {0: "N", 1: "U"}]
    transformer(name, family + "ForConditionalGeneration", family + "Config", names, (inputs(1, 16, 5), inputs(2, 11, 7)), axes, arguments=dict(use_cache=False), vocab_size=100, **sizes)


BOTH = dict(d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128)
two_texts("t5", "T5", d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4)
for n, family in [("bart", "Bart"), ("pegasus", "Pegasus"), ("m2m_100", "M2M100"), ("blenderbot", "Blenderbot"), ("mbart", "MBart")]:
    two_texts(n, family, **BOTH)


def vision(name, model, config, shapes, axes, **sizes):
    transformer(name, model, config, ["pixel_values"], images(*shapes), axes, **sizes)


FOUR = dict(hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 1, 1])
vision("segformer", "SegformerForSemanticSegmentation", "SegformerConfig", ((1, 128, 160), (2, 96, 128)), IMAGE, num_labels=7)
vision("mobilevit", "MobileViTModel", "MobileViTConfig", ((1, 128, 160), (2, 96, 128)), IMAGE)
vision("swin", "SwinModel", "SwinConfig", ((1, 224, 224), (2, 160, 192)), IMAGE, embed_dim=32, depths=[1, 1, 2, 1], num_heads=[1, 2, 4, 8])
vision("dinov2", "Dinov2Model", "Dinov2Config", ((1, 224, 224), (2, 196, 252)), IMAGE, hidden_size=64, num_hidden_layers=2, num_attention_heads=4)
vision("convnextv2", "ConvNextV2Model", "ConvNextV2Config", ((1, 96, 128), (2, 64, 96)), IMAGE, **FOUR)
vision("regnet", "RegNetModel", "RegNetConfig", ((1, 96, 128), (2, 64, 96)), IMAGE, groups_width=16, **FOUR)
vision("yolos", "YolosForObjectDetection", "YolosConfig", ((1, 96, 128), (2, 96, 128)), BATCH, image_size=[96, 128], num_detection_tokens=10, **SMALL)
vision("detr", "DetrForObjectDetection", "DetrConfig", ((1, 128, 160), (2, 128, 128)), IMAGE, use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, num_queries=10, **BOTH)
vision("beit", "BeitModel", "BeitConfig", ((1, 224, 224), (2, 224, 224)), BATCH, use_relative_position_bias=True, **SMALL)
vision("swinv2", "Swinv2Model", "Swinv2Config", ((1, 224, 224), (2, 160, 192)), IMAGE, embed_dim=32, depths=[1, 1, 2, 1], num_heads=[1, 2, 4, 8])
vision("swin2sr", "Swin2SRForImageSuperResolution", "Swin2SRConfig", ((1, 64, 64), (2, 48, 80)), IMAGE, embed_dim=32, depths=[2], num_heads=[2])
vision("pvt", "PvtModel", "PvtConfig", ((1, 224, 224), (2, 224, 224)), BATCH, hidden_sizes=[16, 32, 40, 64], depths=[1, 1, 1, 1])
vision("focalnet", "FocalNetModel", "FocalNetConfig", ((1, 128, 160), (2, 96, 128)), IMAGE, embed_dim=32, depths=[1, 1, 1, 1])
vision("mobilenet_v2", "MobileNetV2ForSemanticSegmentation", "MobileNetV2Config", ((1, 128, 160), (2, 97, 128)), IMAGE)
vision("dpt", "DPTForDepthEstimation", "DPTConfig", ((1, 96, 96), (2, 96, 96)), BATCH, image_size=96, neck_hidden_sizes=[16, 24, 32, 40], fusion_hidden_size=32, backbone_out_indices=[0, 1, 2, 3], is_hybrid=False, **{**SMALL, "num_hidden_layers": 4})
vision("dinov3", "DINOv3ViTModel", "DINOv3ViTConfig", ((1, 64, 96), (2, 96, 80)), IMAGE, patch_size=16, **SMALL)
vision("deformable_detr", "DeformableDetrForObjectDetection", "DeformableDetrConfig", ((1, 128, 160), (1, 96, 128)), [{2: "H", 3: "W"}], use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, num_queries=10, **BOTH)
vision("efficientnet", "EfficientNetModel", "EfficientNetConfig", ((1, 128, 160), (2, 96, 128)), IMAGE)
vision("bit", "BitModel", "BitConfig", ((1, 128, 160), (2, 97, 128)), IMAGE)


def audio(name, model, config, inputs, axes, names=("input_values",), **sizes):
    transformer(name, model, config, list(names), inputs, axes, **sizes)


WAVES = (normal(1, 8000), normal(2, 5003))
CONVOLUTIONS = dict(conv_dim=[32] * 7, num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4, **SMALL)
audio("wav2vec2", "Wav2Vec2ForCTC", "Wav2Vec2Config", WAVES, [{0: "N", 1: "T"}], vocab_size=32, do_stable_layer_norm=True, feat_extract_norm="layer", **CONVOLUTIONS)
audio("hubert", "HubertModel", "HubertConfig", WAVES, [{0: "N", 1: "T"}], **CONVOLUTIONS)
audio("wav2vec2_conformer", "Wav2Vec2ConformerModel", "Wav2Vec2ConformerConfig", WAVES, [{0: "N", 1: "T"}], position_embeddings_type="relative", **CONVOLUTIONS)
audio("wavlm", "WavLMModel", "WavLMConfig", WAVES, [{0: "N", 1: "T"}], **CONVOLUTIONS)
audio("wav2vec2_bert", "Wav2Vec2BertModel", "Wav2Vec2BertConfig", (normal(1, 60, 160), normal(2, 41, 160)), [{0: "N", 1: "T"}], ["input_features"], feature_projection_input_dim=160, **SMALL)
audio("hifigan", "SpeechT5HifiGan", "SpeechT5HifiGanConfig", (normal(1, 40, 80), normal(2, 27, 80)), [{0: "N", 1: "T"}], ["spectrogram"], upsample_initial_channel=64)
audio("dac", "DacModel", "DacConfig", (normal(1, 1, 4800), normal(1, 1, 6400)), [{2: "T"}], encoder_hidden_size=16, decoder_hidden_size=64, downsampling_ratios=[2, 4, 8], upsampling_ratios=[8, 4, 2], n_codebooks=3, codebook_size=64)
audio("encodec", "EncodecModel", "EncodecConfig", (normal(1, 1, 4800), normal(1, 1, 6400)), [{2: "T"}], num_filters=8, hidden_size=32, codebook_size=64, upsampling_ratios=[8, 5, 4, 2], use_causal_conv=True)


def diffusion(name, make, inputs, axes):
    add("diffusers/" + name, make, inputs, axes)


UNET = dict(sample_size=32, block_out_channels=(32, 64), norm_num_groups=8, layers_per_block=1)


def unet():
    import diffusers

    return Part(diffusers.UNet2DModel(**UNET, down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D")), "sample")


def conditional_unet():
    import diffusers

    down, up = ("CrossAttnDownBlock2D", "DownBlock2D"), ("UpBlock2D", "CrossAttnUpBlock2D")
    return Part(diffusers.UNet2DConditionModel(**UNET, cross_attention_dim=48, attention_head_dim=8, down_block_types=down, up_block_types=up), "sample")


class Autoencoder(torch.nn.Module):
    """One half of an autoencoder of images."""

    def __init__(self, decodes):
        super().__init__()
        import diffusers

        blocks = dict(down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2)
        self.module, self.decodes = diffusers.AutoencoderKL(block_out_channels=(32, 64), norm_num_groups=8, latent_channels=4, **blocks), decodes

    def forward(self, x):
        return self.module.decode(x).sample if self.decodes else self.module.encode(x).latent_dist.mean


def noise(*shape):
    return lambda: (torch.randn(*shape), torch.tensor([5.0]))


diffusion("unet", unet, (noise(1, 3, 32, 32), noise(2, 3, 24, 40)), IMAGE + [{}])
diffusion("vae_decoder", lambda: Autoencoder(True), images((1, 16, 16, 4), (2, 11, 18, 4)), IMAGE)
diffusion("vae_encoder", lambda: Autoencoder(False), images((1, 32, 32), (2, 27, 44)), IMAGE)


def prompted(batch, height, width, words):
    return lambda: (torch.randn(batch, 4, height, width), torch.tensor([5.0]), torch.randn(batch, words, 48))


diffusion("conditional_unet", conditional_unet, (prompted(1, 32, 32, 7), prompted(2, 24, 40, 9)), IMAGE + [{}, {0: "N", 1: "S"}])
