import socket,threading,time
from phalanx.context import Context
from phalanx_agent.worker.link import Link
from phalanx_agent.worker.steps import Marks
from phalanx.core.frames import Frame,Kind,NO_ID
a,b=socket.socketpair()
threading.Thread(target=lambda:[None for _ in iter(lambda: b.recv(1<<16),b"")],daemon=True).start()
link=Link(a.detach())
def ev(event,**more): link.send(Frame(Kind.RANK,NO_ID,{"event":event,**more}))
m=Marks(ev,list)
c=Context(report_progress=m.mark)
old=Context(report_progress=lambda s,t: ev("progress",step=s,total=t))
for name,x in (("now",c),("before",old)):
    n=20000; t=time.perf_counter()
    for i in range(n): x.progress(i,n)
    print(name,(time.perf_counter()-t)/n*1e6,"us")
