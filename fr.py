import os,sys,json,time
os.environ["TORCH_FR_BUFFER_SIZE"]="16"
import torch, torch.distributed as dist, torch.multiprocessing as mp
def run(rank, n):
    os.environ.update(MASTER_ADDR="127.0.0.1",MASTER_PORT="29777",RANK=str(rank),WORLD_SIZE=str(n))
    dist.init_process_group("gloo")
    from torch._C._distributed_c10d import _dump_fr_trace_json as d
    t=torch.ones(1000)
    for i in range(20):
        if rank==1: time.sleep(0.05)
        else: time.sleep(0.002)
        w = dist.all_reduce(t, async_op=False)
    now=time.time_ns()
    tr=json.loads(d(includeCollectives=True))
    if rank in (0,1):
        for e in tr["entries"][-2:]: print(rank, now, json.dumps(e), flush=True)
    if rank==0:
        for inc in (True,False):
            a=time.perf_counter()
            for _ in range(200): d(includeCollectives=inc)
            b=time.perf_counter()
            x=d(includeCollectives=inc)
            c=time.perf_counter()
            for _ in range(200): json.loads(x)
            e=time.perf_counter()
            print(inc, "dump us", (b-a)/200*1e6, "loads", (e-c)/200*1e6, len(x))
    dist.barrier()
if __name__=="__main__":
    mp.spawn(run,(2,),nprocs=2)
