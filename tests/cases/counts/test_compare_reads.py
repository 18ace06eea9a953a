# Two variants that differ only in reads by the host: 6 and 1. compare() shows them beside the other counts.
import torch


def test_reads(dtdispatch, device_mesh):
    xs = [torch.rand(8, 8) for _ in range(6)]
    compared = dtdispatch.compare(
        {
            "each": lambda: [x.sum().item() for x in xs],
            "stacked": lambda: torch.stack([x.sum() for x in xs]).tolist(),
        }
    )
    assert [getattr(compared[name].counts, "reads", None) for name in compared] == [6, 1]
