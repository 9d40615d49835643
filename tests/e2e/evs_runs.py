"""Run as a script: the same requests on engines that schedule differently, and in transformers.

Prints one JSON object on the last line: for each run, for each request, the greedy tokens and the
top logprobs of each step.
"""

import gc
import json
import os

os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="ERROR"
)

import numpy as np
import torch
from transformers import AutoProcessor, Qwen2_5_VLForConditionalGeneration
from vllm import LLM, SamplingParams
from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

from server.demo.model import ensure_model

MODEL = str(ensure_model())
VIDEO = "<|vision_start|><|video_pad|><|vision_end|>"
NUM_TOKENS, TOP = 8, 3
RUNS = {
    "alone": {"alone": True},
    "batched": {},
    "chunks of 48": {"max_num_batched_tokens": 48},
    "chunks of 160": {"max_num_batched_tokens": 160},
    "prefix cache": {"enable_prefix_caching": True},
    "prefix cache, chunks of 96": {"enable_prefix_caching": True, "max_num_batched_tokens": 96},
    "preemption": {"kv_cache_memory_bytes": 3 << 20, "max_model_len": 512},
}


def clip(num_frames, *, seed=0, width=168, height=112, fps=2.0):
    """Noise: what changes how much is then far beyond rounding, and all choose the same tokens."""
    rng = np.random.default_rng(seed)
    frames = rng.integers(0, 255, (num_frames, height, width, 3), dtype=np.uint8)
    metadata = {
        "fps": fps,
        "duration": num_frames / fps,
        "total_num_frames": num_frames,
        "frames_indices": list(range(num_frames)),
        "do_sample_frames": False,
    }
    return frames, metadata


def prompt(num_videos):
    videos = " then ".join([VIDEO] * num_videos)
    return f"<|im_start|>user\n{videos} what is it<|im_end|>\n<|im_start|>assistant\n"


ONE = [clip(16)]
TWO = [clip(16), clip(8, seed=3, fps=4.0)]
LONG = [clip(60, seed=5, width=56, height=56, fps=1.5)]
REQUESTS = [
    *[(ONE, [rate]) for rate in (0, 0.25, 0.5, 0.75, 0.9)],
    *[(TWO, rates) for rates in ([0, 0], [0.5, 0.75], [0, 0.9], [0.9, 0])],
    *[(LONG, [rate]) for rate in (0, 0.75)],
]


def on_vllm(*, alone=False, **arguments):
    llm = LLM(
        MODEL,
        **{
            "dtype": "float32",
            "enforce_eager": True,
            "max_model_len": 4096,
            "max_num_seqs": 8,
            "kv_cache_memory_bytes": 64 << 20,
            "limit_mm_per_prompt": {"video": 4, "image": 0},
            "enable_prefix_caching": False,
            "video_pruning_rate": 0.5,
            **arguments,
        },
    )
    requests = [
        {
            "prompt": prompt(len(clips)),
            "multi_modal_data": {"video": clips},
            "mm_processor_kwargs": {"video_pruning_rate": rates},
        }
        for clips, rates in REQUESTS
    ]
    params = SamplingParams(max_tokens=NUM_TOKENS, temperature=0, logprobs=TOP)
    for _ in range(2 if arguments.get("enable_prefix_caching") else 1):
        batches = [[request] for request in requests] if alone else [requests]
        outputs = [o for batch in batches for o in llm.generate(batch, params, use_tqdm=False)]
    answers = [
        {
            "tokens": list(output.outputs[0].token_ids),
            "logprobs": [
                sorted((step.logprob for step in steps.values()), reverse=True)[:TOP]
                for steps in output.outputs[0].logprobs
            ],
        }
        for output in outputs
    ]
    del llm
    cleanup_dist_env_and_memory()
    gc.collect()
    return answers


class InTransformers:
    """EVS done plainly: the whole prompt's embeddings and positions, minus the pruned columns."""

    def __init__(self):
        self.model = Qwen2_5_VLForConditionalGeneration.from_pretrained(MODEL).eval()
        self.processor = AutoProcessor.from_pretrained(MODEL)

    @torch.no_grad()
    def answer(self, clips, rates):
        inputs = self.processor.video_processor(
            [frames for frames, _ in clips], return_tensors="pt", do_sample_frames=False
        )
        features = self.model.model.get_video_features(
            inputs["pixel_values_videos"], inputs["video_grid_thw"]
        ).pooler_output
        seconds = [2 / metadata["fps"] for _, metadata in clips]
        embeddings, positions = self._prompt(
            features, inputs["video_grid_thw"].tolist(), seconds, rates
        )
        return self._greedy(embeddings, positions)

    def _prompt(self, features, grids, seconds, rates):
        embed = self.model.get_input_embeddings()
        rows, columns, next_position = [], [], 0
        videos = iter(zip(grids, features, rates, strict=True))
        spacings = iter(seconds)
        for piece in self._pieces(len(features)):
            if piece is None:
                grid, feature, rate = next(videos)
                walk = self._walk(grid, next(spacings))
                keep = self._kept(feature, grid, rate)
                rows.append(feature[keep])
                columns.append(walk[keep] + next_position)
                next_position += int(walk.max()) + 1
            else:
                rows.append(embed(piece))
                columns.append((torch.arange(len(piece)) + next_position)[:, None].expand(-1, 3))
                next_position += len(piece)
        self._next_position = next_position
        return torch.cat(rows), torch.cat(columns)

    def _pieces(self, num_videos):
        """The prompt's token ids, with None for each video."""
        tokenizer = self.processor.tokenizer
        ids = tokenizer.encode(prompt(num_videos), add_special_tokens=False)
        video_id = tokenizer.convert_tokens_to_ids("<|video_pad|>")
        piece = []
        for token_id in ids:
            if token_id == video_id:
                yield torch.tensor(piece)
                yield None
                piece = []
            else:
                piece.append(token_id)
        yield torch.tensor(piece)

    @staticmethod
    def _walk(grid, seconds_per_grid):
        steps, height, width = grid[0], grid[1] // 2, grid[2] // 2
        return torch.tensor(
            [
                (int(step * 2 * seconds_per_grid), row, column)  # two tokens per second
                for step in range(steps)
                for row in range(height)
                for column in range(width)
            ]
        )

    @staticmethod
    def _kept(feature, grid, rate):
        steps = grid[0]
        per_step = len(feature) // steps
        count = max(per_step, int(len(feature) * (1 - rate)))
        by_step = feature.reshape(steps, per_step, -1)
        similarity = torch.nn.functional.cosine_similarity(by_step[1:], by_step[:-1], dim=-1)
        change = torch.cat([torch.full((per_step,), 255.0), 1 - similarity.flatten()])
        best = torch.argsort(change, descending=True, stable=True)[:count]
        mask = torch.zeros(len(feature), dtype=torch.bool)
        mask[best] = True
        return mask

    def _greedy(self, embeddings, positions):
        tokens, logprobs = [], []
        for step in range(NUM_TOKENS):
            output = self.model.model.language_model(
                inputs_embeds=embeddings[None],
                position_ids=positions.T[:, None],
                use_cache=False,
            )
            scores = self.model.lm_head(output.last_hidden_state[0, -1]).log_softmax(-1)
            best = scores.topk(TOP)
            tokens.append(int(best.indices[0]))
            logprobs.append(best.values.tolist())
            embeddings = torch.cat(
                [embeddings, self.model.get_input_embeddings()(best.indices[:1])]
            )
            positions = torch.cat([positions, torch.full((1, 3), self._next_position + step)])
        return {"tokens": tokens, "logprobs": logprobs}


def main():
    results = {name: on_vllm(**arguments) for name, arguments in RUNS.items()}
    reference = InTransformers()
    results["transformers"] = [reference.answer(clips, rates) for clips, rates in REQUESTS]
    print(json.dumps(results))


if __name__ == "__main__":
    main()
