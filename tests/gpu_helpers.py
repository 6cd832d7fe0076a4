"""What tests on a real device share."""

import torch


def poison_memory():
    """What the allocator hands out next holds NaN: a kernel that leaves something unwritten shows."""
    blocks = [torch.full((size,), torch.nan, device="cuda") for size in (128, 10**5, 10**6, 10**7) for _ in range(8)]
    del blocks


def run_without_waiting(step, before=1):
    """Run `step` on a stream of its own, as before a capture: `before` times to warm up, then once more, when waiting
    for the device is an error. What the last one returned."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(before):
            step()
        torch.cuda.set_sync_debug_mode("error")
        try:
            made = step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    return made


def captured(step):
    """(graph, what the captured step returned)"""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = step()
    return graph, made
