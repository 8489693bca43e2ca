"""Where a GPU spends the time of a hierarchical loss: milliseconds and launches of each kernel in a step of SupHAP.

python benchmarks/profile_loss.py      # for docs/benchmarks.md, on a GPU; `h200/contrast/profile.txt` has the largest, renamed
"""

from __future__ import annotations

import torch
from torch.profiler import ProfilerActivity, profile

from suprank.losses import SupHAP

STEPS, SHOWN = 3, 22


def main() -> None:
    for size in (2048, 8192):
        embeddings = torch.randn(size, 512, device="cuda", requires_grad=True)
        fine = torch.arange(size, device="cuda") // 4
        labels, loss = torch.stack([fine, fine // 4, fine // 4 % 4], 1), SupHAP()
        for _ in range(STEPS):  # kernels compile
            loss(embeddings, labels).backward()
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiled:
            for _ in range(STEPS):
                loss(embeddings, labels).backward()
            torch.cuda.synchronize()
        kernels = [one for one in profiled.key_averages() if str(one.device_type).endswith("CUDA")]
        rows = sorted(((one.self_device_time_total / 1e3 / STEPS, one.count / STEPS, one.key) for one in kernels), reverse=True)
        print(f"{size}: {sum(row[0] for row in rows):.3g} ms in {sum(row[1] for row in rows):.0f} launches")
        for milliseconds, launches, name in rows[:SHOWN]:
            print(f"{milliseconds:.3f} {launches:5.1f} {name[:90]}")


if __name__ == "__main__":
    main()
