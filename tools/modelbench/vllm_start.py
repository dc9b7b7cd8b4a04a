"""A process with vLLM's engine on random weights: ``python -m modelbench.vllm_start TASK``.

The task, a JSON object, has the model's name, a directory for its configuration, and arguments for ``vllm.LLM``. Once
the engine has made its first token, the process answers with the seconds that this took since it was started. It then
does what it is told, a line at a time: ``decode SEQUENCES`` and ``prefill TOKENS`` answer with the seconds of one
measurement, and after ``kernels`` with the microseconds of their GPU kernels, which do not depend on how fast the CPU
launches them. ``check`` answers with tokens and their log-probabilities. All answers are JSON lines.
"""

import json
import os
import re
import sys
import time
from collections.abc import Sequence
from heapq import nlargest
from pathlib import Path
from typing import Any

import torch
from modelbench.kernels import kernel_times

_COMMON = {
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "initializer_range": 0.02,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LLAMA_3 = {
    **_COMMON,
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "tie_word_embeddings": True,
}
_QWEN_2 = {
    **_COMMON,
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "use_sliding_window": False,
}


def _sizes(hidden: int, intermediate: int, layers: int, heads: int) -> dict[str, int]:
    return {
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
    }


MODELS: dict[str, dict[str, Any]] = {
    "llama-3.2-1b": {**_LLAMA_3, **_sizes(2048, 8192, 16, 32), "head_dim": 64},
    "llama-3.2-3b": {**_LLAMA_3, **_sizes(3072, 8192, 28, 24), "head_dim": 128},
    "qwen2-0.5b": {
        **_QWEN_2,
        **_sizes(896, 4864, 24, 14),
        "num_key_value_heads": 2,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    },
    "qwen2-7b": {
        **_QWEN_2,
        **_sizes(3584, 18944, 28, 28),
        "num_key_value_heads": 4,
        "vocab_size": 152064,
        "tie_word_embeddings": False,
    },
    "olmoe-1b-7b": {
        **_COMMON,
        **_sizes(2048, 1024, 16, 16),
        "architectures": ["OlmoeForCausalLM"],
        "model_type": "olmoe",
        "num_key_value_heads": 16,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "norm_topk_prob": False,
        "vocab_size": 50304,
        "max_position_embeddings": 4608,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    },
}
"""The models' configurations, as they are published."""

PROMPT, FEW, MANY = 32, 8, 72  # tokens of each prompt, and of the two generations whose seconds are subtracted
DECODED = MANY - FEW  # tokens that a measurement of decoding tells the seconds of, for each sequence
TRACED, MOST_KERNELS = 16, 25  # such tokens of a trace, and how many of the longest kernels it names
_WAITING = re.compile("nccl|cross_device_reduce")  # parts of the names of kernels that wait for other GPUs


def main() -> None:
    """Do the task."""
    task = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM prints

    def answer(**fields: Any) -> None:
        answers.write(json.dumps(fields) + "\n")
        answers.flush()

    directory = Path(task["directory"])
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(MODELS[task["model"]]), encoding="utf-8")
    from vllm import LLM, __version__

    imported = time.time()
    engine = Engine(
        LLM(model=str(directory), skip_tokenizer_init=True, load_format="dummy", seed=0, **task["arguments"])
    )
    ready = time.time()
    engine.seconds(1, PROMPT, 1)
    begin = task["begin"]
    answer(
        import_s=imported - begin,
        engine_s=ready - imported,
        start_s=time.time() - begin,
        device_name=torch.cuda.get_device_name(0),
        torch=torch.__version__,
        vllm=__version__,
    )
    engine.llm.apply_model(randomize)
    for *traced, command, number in (line.split() for line in sys.stdin):
        count = int(number)
        if traced:
            answer(**engine.kernels(command, count))
        elif command == "decode":
            answer(seconds=engine.seconds(count, PROMPT, MANY) - engine.seconds(count, PROMPT, FEW))
        elif command == "prefill":
            answer(seconds=engine.seconds(1, count, 1))
        else:
            answer(**engine.check(count))


class Engine:
    """vLLM's engine, asked for greedy tokens after random prompts, which are the same in each process."""

    def __init__(self, llm: Any) -> None:
        self.llm = llm
        self._generator = torch.Generator().manual_seed(0)

    def generate(self, sequences: int, length: int, new: int, **more: Any) -> Sequence[Any]:
        """Generate ``new`` tokens for each sequence, after new prompts of this length."""
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt

        tokens = torch.randint(3, 50_000, (sequences, length), generator=self._generator).tolist()
        parameters = SamplingParams(temperature=0.0, max_tokens=new, ignore_eos=True, detokenize=False, **more)
        prompts = [TokensPrompt(prompt_token_ids=each) for each in tokens]
        outputs: Sequence[Any] = self.llm.generate(prompts, parameters, use_tqdm=False)
        return outputs

    def seconds(self, sequences: int, length: int, new: int) -> float:
        """How long ``generate`` takes."""
        begin = time.perf_counter()
        self.generate(sequences, length, new)
        return time.perf_counter() - begin

    def kernels(self, command: str, count: int) -> dict[str, Any]:
        """How long the kernels of decoding ``TRACED`` tokens, or of a prefill, take on the first GPU of the engine.

        Kernels that wait for other GPUs are left out.
        """
        decodes = command == "decode"
        self.llm.collective_rpc(start_trace, args=(count if decodes else 0,))
        self.generate(*((count, PROMPT, MANY) if decodes else (1, count, 1)))
        found: dict[str, list[float]] = self.llm.collective_rpc(stop_trace)[0]
        times = {name: each for name, each in found.items() if not _WAITING.search(name)}
        us = {name: sum(each) for name, each in times.items()}
        longest = nlargest(MOST_KERNELS, us, key=us.__getitem__)
        most = [[name[:100], len(times[name]), round(us[name], 1)] for name in longest]
        return {"us": round(sum(us.values()), 1), "launches": sum(map(len, times.values())), "kernels": most}

    def check(self, sequences: int) -> dict[str, Any]:
        """Return the greedy tokens of each sequence, and the log-probability of each."""
        self._generator.manual_seed(1)
        completions = [output.outputs[0] for output in self.generate(sequences, PROMPT, FEW, logprobs=0)]
        tokens = [list(each.token_ids) for each in completions]
        found = [
            [step[token].logprob for step, token in zip(each.logprobs, chosen, strict=True)]
            for each, chosen in zip(completions, tokens, strict=True)
        ]
        return {"tokens": tokens, "logprobs": found}


def randomize(model: torch.nn.Module) -> None:
    """Fill the parameters in place, so that activations keep their size: dummy weights are almost 0."""
    for index, (name, parameter) in enumerate(model.named_parameters()):
        generator = torch.Generator(parameter.device).manual_seed(index)
        if parameter.dim() > 1:
            parameter.data.normal_(0, parameter.shape[-1] ** -0.5, generator=generator)
        else:
            parameter.data.fill_(1.0 if "norm" in name else 0.0)


class Trace:
    """A trace of a worker's GPU kernels: of all steps, or of the first ``TRACED`` that decode a token of each sequence.

    Steps with some of the sequences come before these, and differ from run to run. vLLM's executors look the worker's
    ``execute_model`` up for each step.
    """

    def __init__(self, worker: Any, sequences: int) -> None:
        self._worker, self._sequences, self._steps = worker, sequences, 0
        self._profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
        if sequences:
            worker.execute_model = self._execute_model
        else:
            self._profile.start()

    def _execute_model(self, scheduled: Any) -> Any:
        if self._steps == TRACED:
            self._stop()
            del self._worker.execute_model  # the method of its class takes over
        elif len(scheduled.num_scheduled_tokens) == scheduled.total_num_scheduled_tokens == self._sequences:
            if self._steps == 0:
                torch.cuda.synchronize()
                self._profile.start()
            self._steps += 1
        return type(self._worker).execute_model(self._worker, scheduled)

    def _stop(self) -> None:
        torch.cuda.synchronize()
        self._profile.stop()

    def end(self) -> dict[str, list[float]]:
        """Return the microseconds of each launch, by the kernels' names."""
        if not self._sequences:
            self._stop()
        elif self._steps < TRACED:
            raise RuntimeError(f"{self._steps} steps decoded a token of each sequence, not {TRACED}")
        return kernel_times(self._profile)


def start_trace(worker: Any, sequences: int) -> None:
    """Trace a worker's kernels, those of decoding if there is a number of sequences."""
    worker.traced = Trace(worker, sequences)


def stop_trace(worker: Any) -> dict[str, list[float]]:
    """End a worker's trace, and return the times of its kernels."""
    found: dict[str, list[float]] = worker.traced.end()
    return found


if __name__ == "__main__":
    from modelbench import vllm_start  # workers can import the functions that they are sent from it, not from __main__

    vllm_start.main()
