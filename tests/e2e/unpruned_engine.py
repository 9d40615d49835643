"""Run as a script: plain vLLM without our plugin and without pruning, as the reference.

Reads prompts and frames from an .npz file, prints tokens and logprobs as JSON on the last line.
"""

import json
import os
import sys

os.environ["VLLM_PLUGINS"] = ""
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ["VLLM_NO_USAGE_STATS"] = "1"

import numpy as np
from vllm import LLM, SamplingParams


def main(model_dir, path, max_tokens):
    data = np.load(path, allow_pickle=False)
    times, duration = data["timestamps_seconds"], float(data["duration_seconds"])
    metadata = {
        "fps": 1000.0,
        "duration": duration,
        "total_num_frames": round(duration * 1000),
        "frames_indices": [round(t * 1000) for t in times.tolist()],
        "do_sample_frames": False,
    }
    llm = LLM(
        model_dir,
        dtype="float32",
        enforce_eager=True,
        max_model_len=8192,
        max_num_seqs=8,
        kv_cache_memory_bytes=256 << 20,
        limit_mm_per_prompt={"video": 4, "image": 0},
    )
    (output,) = llm.generate(
        {
            "prompt": str(data["prompt"]),
            "multi_modal_data": {"video": [(data["frames"], metadata)] * int(data["num_videos"])},
        },
        SamplingParams(max_tokens=int(max_tokens), temperature=0, logprobs=3),
    )
    steps = [
        sorted(((lp.decoded_token, lp.logprob) for lp in step.values()), key=lambda p: -p[1])
        for step in output.outputs[0].logprobs
    ]
    print(
        json.dumps(
            {
                "text": output.outputs[0].text,
                "steps": steps,
                "prompt_tokens": len(output.prompt_token_ids),
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
