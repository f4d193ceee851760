# Posts a SEND for which there is no receive, and a receive, and prints how they complete when the
# device dies, and which event occurs.
import sys
import time

from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import RecvWR, SGE, SendWR
import pyverbs.enums as e

ctx = Context(name="rxe0")
pd, cq = PD(ctx), CQ(ctx, 10)
mr = MR(pd, 4096, e.IBV_ACCESS_LOCAL_WRITE)


def qp():
    init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(), sq_sig_all=1)
    return QP(pd, init, QPAttr())


def connect(a, b):
    attr = QPAttr()
    attr.dest_qp_num, attr.path_mtu, attr.rnr_retry, attr.retry_cnt = b.qp_num, e.IBV_MTU_1024, 7, 7
    attr.timeout, attr.max_rd_atomic, attr.max_dest_rd_atomic = 14, 1, 1
    attr.min_rnr_timer = 12
    attr.ah_attr = AHAttr(gr=GlobalRoute(dgid=ctx.query_gid(1, 0), sgid_index=0), is_global=1,
                          port_num=1)
    a.to_rts(attr)


a, b = qp(), qp()
connect(a, b)
connect(b, a)
sge = [SGE(mr.buf, 64, mr.lkey)]
a.post_recv(RecvWR(wr_id=2, num_sge=1, sg=sge))
a.post_send(SendWR(wr_id=1, num_sge=1, sg=sge))
print("posted", flush=True)
done = {}
while len(done) < 2:
    _, wcs = cq.poll(10)
    for wc in wcs:
        done[wc.wr_id] = wc.status
    time.sleep(0.001)
event = ctx.get_async_event()
print(done[1], done[2], event.event_type, flush=True)
