/* indirect-peer: the peer of transport/indirect, on libibverbs only.
 *
 * conversation.h describes how it is controlled. The protocol, its messages, states and names are
 * those of transport/indirect/core. It has one connection and, as initiator, one transfer at a
 * time.
 *
 *   open   sgid mtu mem slots slot entries segment t(us)
 *                                 -> ok qpn psn udqpn qkey token mem memkey base rkey
 *   join   qpn psn gid udqpn qkey token base rkey slots slot
 *   serve  n ms frp(%) seed never -> ok served delivered parked straight refused readdirect
 *                                    readindirect stale
 *          until n transfers were released; never: registration never succeeds
 *   put    n len src dba step ms dynamic -> ok direct indirect late timeouts invalid
 *   get    n len dst dba step ms         -> ok the same
 *   vanish                        -> ok        the RC QP enters ERR, as when a process dies
 *   fill, check  off len seed     -> ok
 */
#include <arpa/inet.h>
#include <endian.h>
#include <infiniband/verbs.h>
#include <unistd.h>

#include "conversation.h"

enum { CTL = 64, CTL_LEN = 128, RECVS = 64, WINDOW = 8, MAX_ENTRIES = 256, MAX_SLOTS = 256, MSG = 40, GRH = 40 };
enum { REQUEST = 1, ANSWER, CONFIRM, RELEASE, RELEASED };
enum { F_READ = 1, F_INDIRECT = 2, F_VALID = 4, F_ABORT = 8 };
enum { WR_CTL_OUT = 1, WR_CTL_IN, WR_DATA, WR_WRITE };
#define MAGIC 0x47445231u
#define NO_SLOT 0xffff
#define IMM_READ 0x80000000u

/* ---- objects ---- */

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *rc, *ud;
static struct ibv_ah *ah;
static struct ibv_mr *mem, *slots, *ctl;
static uint32_t qkey, token, slot_len, n_slots, entries, segment, psn;
static int sgid;
static enum ibv_mtu path_mtu;
static int64_t timeout_us;
static struct { uint32_t udqpn, qkey, token, rkey, slots, slot; uint64_t base; } peer;
static const char *broken; /* why the connection is unusable */

static struct ibv_mr *region(size_t n, int access)
{
	void *p = NULL;
	if (posix_memalign(&p, 4096, (n + 4095) & ~4095UL)) return NULL;
	memset(p, 0, n);
	return ibv_reg_mr(pd, p, n, access);
}

static struct ibv_qp *queue(enum ibv_qp_type type, int sends, int recvs)
{
	struct ibv_qp_init_attr a = { .send_cq = cq, .recv_cq = cq, .qp_type = type, .cap = { sends, recvs, 1, 1, MSG } };
	struct ibv_qp *q = ibv_create_qp(pd, &a);
	struct ibv_qp_attr i = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = qkey, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
	if (!q || (errno = ibv_modify_qp(q, &i, mask))) return NULL;
	return q;
}

static int post_ctl(uint64_t i)
{
	struct ibv_sge s = { (uintptr_t)ctl->addr + i * CTL_LEN, CTL_LEN, ctl->lkey };
	struct ibv_recv_wr wr = { .wr_id = (uint64_t)WR_CTL_IN << 56 | i, .sg_list = &s, .num_sge = 1 }, *bad;
	return ibv_post_recv(ud, &wr, &bad);
}

static int post_data(void)
{
	struct ibv_recv_wr wr = { .wr_id = (uint64_t)WR_DATA << 56 }, *bad;
	return ibv_post_recv(rc, &wr, &bad);
}

static void cmd_open(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	if (!list || !list[0] || !(ctx = ibv_open_device(list[0]))) { fail("open"); return; }
	sgid = num("sgid", 1);
	path_mtu = num("mtu", 1024) >= 4096 ? IBV_MTU_4096 : IBV_MTU_1024;
	n_slots = num("slots", 4), slot_len = num("slot", 65536), entries = num("entries", 16), segment = num("segment", 16384);
	timeout_us = num("t", 20000);
	srand(getpid());
	qkey = 0x1ee7, token = (uint32_t)rand() << 8, psn = rand() & 0xffffff;
	pd = ibv_alloc_pd(ctx);
	cq = ibv_create_cq(ctx, 1024, NULL, NULL, 0);
	if (!pd || !cq) { fail("pd, cq"); return; }
	int rw = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	mem = region(num("mem", 1 << 20), rw);
	slots = region((size_t)n_slots * slot_len + 1, rw);
	ctl = region(CTL * CTL_LEN, IBV_ACCESS_LOCAL_WRITE);
	rc = queue(IBV_QPT_RC, 2 * WINDOW, RECVS);
	ud = queue(IBV_QPT_UD, 128, CTL);
	if (!mem || !slots || !ctl || !rc || !ud) { fail("memory, queues"); return; }
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTR };
	if ((errno = ibv_modify_qp(ud, &a, IBV_QP_STATE))) { fail("UD to RTR"); return; }
	a.qp_state = IBV_QPS_RTS;
	if ((errno = ibv_modify_qp(ud, &a, IBV_QP_STATE | IBV_QP_SQ_PSN))) { fail("UD to RTS"); return; }
	for (int i = 0; i < CTL; i++) post_ctl(i);
	for (int i = 0; i < RECVS; i++) post_data();
	printf("ok qpn=%u psn=%u udqpn=%u qkey=%u token=%u mem=%llu memkey=%u base=%llu rkey=%u\n", rc->qp_num, psn, ud->qp_num, qkey, token,
		(unsigned long long)(uintptr_t)mem->addr, mem->rkey, (unsigned long long)(uintptr_t)slots->addr, slots->rkey);
}

static void cmd_join(void)
{
	struct ibv_ah_attr to = { .is_global = 1, .port_num = 1, .grh = { .sgid_index = sgid, .hop_limit = 64 } };
	inet_pton(AF_INET6, text("gid", "::"), &to.grh.dgid);
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTR, .path_mtu = path_mtu, .dest_qp_num = num("qpn", 0), .rq_psn = num("psn", 0),
		.max_dest_rd_atomic = 16, .min_rnr_timer = 1, .ah_attr = to };
	if ((errno = ibv_modify_qp(rc, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))) { fail("RC to RTR"); return; }
	struct ibv_qp_attr b = { .qp_state = IBV_QPS_RTS, .sq_psn = psn, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 16 };
	if ((errno = ibv_modify_qp(rc, &b, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		IBV_QP_MAX_QP_RD_ATOMIC))) { fail("RC to RTS"); return; }
	if (!(ah = ibv_create_ah(pd, &to))) { fail("create_ah"); return; }
	peer.udqpn = num("udqpn", 0), peer.qkey = num("qkey", 0), peer.token = num("token", 0), peer.rkey = num("rkey", 0);
	peer.base = num("base", 0), peer.slots = num("slots", 0), peer.slot = num("slot", 0);
	printf("ok\n");
}

/* ---- messages ---- */

struct message { uint8_t type, flags; uint16_t slot; uint32_t tid, len, rkey; uint64_t sba, dba; };

static void tell(const struct message *m)
{
	struct { uint32_t magic; uint8_t type, flags; uint16_t slot; uint32_t token, tid; uint64_t sba, dba; uint32_t len, rkey; } __attribute__((packed)) b = {
		htonl(MAGIC), m->type, m->flags, htons(m->slot), htonl(peer.token), htonl(m->tid), htobe64(m->sba), htobe64(m->dba), htonl(m->len), htonl(m->rkey) };
	struct ibv_sge s = { (uintptr_t)&b, MSG, 0 };
	struct ibv_send_wr wr = { .wr_id = (uint64_t)WR_CTL_OUT << 56, .sg_list = &s, .num_sge = 1, .opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED, .wr.ud = { ah, peer.udqpn, peer.qkey } }, *bad;
	ibv_post_send(ud, &wr, &bad); /* on failure it is lost, as datagrams may be */
}

static int parse(const uint8_t *b, size_t n, struct message *m)
{
	uint32_t w;
	uint64_t l;
	uint16_t h;
	if (n != MSG) return 0;
	memcpy(&w, b, 4);
	if (ntohl(w) != MAGIC) return 0;
	memcpy(&w, b + 8, 4);
	if (ntohl(w) != token) return 0;
	m->type = b[4], m->flags = b[5];
	memcpy(&h, b + 6, 2), m->slot = ntohs(h);
	memcpy(&w, b + 12, 4), m->tid = ntohl(w);
	memcpy(&l, b + 16, 8), m->sba = be64toh(l);
	memcpy(&l, b + 24, 8), m->dba = be64toh(l);
	memcpy(&w, b + 32, 4), m->len = ntohl(w);
	memcpy(&w, b + 36, 4), m->rkey = ntohl(w);
	return m->type >= REQUEST && m->type <= RELEASED;
}

static void rdma_write(uint64_t local, uint32_t len, uint64_t to, uint32_t rkey, int with_imm, uint32_t imm, uint32_t entry)
{
	struct ibv_sge s = { local, len, mem->lkey };
	struct ibv_send_wr wr = { .wr_id = (uint64_t)WR_WRITE << 56 | entry, .sg_list = &s, .num_sge = 1,
		.opcode = with_imm ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED, .imm_data = htonl(imm),
		.wr.rdma = { to, rkey } }, *bad;
	if ((errno = ibv_post_send(rc, &wr, &bad))) broken = "post_send";
}

/* ---- responder ---- */

enum { FREE, ASKED, READY, SENDING, SENT };

static struct entry {
	int state, seen, kind, answered, leave, abort, timeouts, flying;
	uint32_t tid, len, rkey, sent;
	uint16_t slot;
	uint64_t dba, sba;
	int64_t due;
} in[MAX_ENTRIES];

static struct lot { int busy, known, parked; uint32_t tid, segments, received, moved; } lots[MAX_SLOTS];

static struct { uint64_t served, delivered, parked, straight, refused, readdirect, readindirect, stale; } did;
static unsigned frp;
static int never;

static void move(struct entry *e)
{
	if (!e->answered || e->slot == NO_SLOT) return;
	struct lot *l = &lots[e->slot];
	memcpy((char *)mem->addr + e->dba + l->moved, (char *)slots->addr + (size_t)e->slot * slot_len + l->moved, l->received - l->moved);
	l->moved = l->received;
}

static void vacate(struct entry *e)
{
	if (e->slot != NO_SLOT) memset(&lots[e->slot], 0, sizeof lots[0]);
	e->slot = NO_SLOT;
}

static void try_release(struct entry *e)
{
	if (!e->leave || e->state == FREE || e->flying) return;
	int whole = e->kind ? e->state == SENT : e->state == READY && (e->slot == NO_SLOT || lots[e->slot].moved == e->len);
	if (!e->abort && !whole) return;
	if (!e->abort) {
		did.served++;
		if (!e->kind) did.delivered++;
		if (e->slot != NO_SLOT) (*(lots[e->slot].parked ? &did.parked : &did.straight))++;
	}
	vacate(e);
	e->state = FREE;
	tell(&(struct message){ .type = RELEASED, .slot = NO_SLOT, .tid = e->tid });
}

static void answer(struct entry *e)
{
	struct message m = { .type = ANSWER, .slot = NO_SLOT, .tid = e->tid, .len = e->len };
	if (e->state != ASKED) {
		m.flags = F_VALID;
		m.dba = (uintptr_t)mem->addr + e->dba;
		m.rkey = mem->rkey;
	}
	tell(&m);
	if (e->state == ASKED) return;
	if (e->kind && !e->answered) e->due = now() + timeout_us;
	e->answered = 1;
	move(e);
}

static void attach(struct entry *e, const struct message *m)
{
	if (!(m->flags & F_INDIRECT) || e->slot != NO_SLOT || m->slot >= n_slots) return;
	struct lot *l = &lots[m->slot];
	if (l->busy && (l->known || l->tid != (m->tid & 0x7fff))) { broken = "the slot is not free"; return; }
	l->busy = l->known = 1, l->tid = m->tid & 0x7fff;
	e->slot = m->slot;
	move(e);
}

static void on_request(struct entry *e, const struct message *m)
{
	if (e->seen && m->tid == e->tid) {
		if (e->state == FREE) { did.stale++; return; }
	} else {
		if (e->state != FREE || (e->seen && (int32_t)(m->tid - e->tid) < 0)) { did.stale++; return; }
		*e = (struct entry){
			.state = ASKED, .seen = 1, .kind = m->flags & F_READ, .tid = m->tid, .len = m->len,
			.rkey = m->rkey, .slot = NO_SLOT, .dba = m->dba, .sba = m->sba,
		};
	}
	if (e->state == ASKED) {
		if (never || (unsigned)(rand() % 100) < frp || e->dba > mem->length || e->len > mem->length - e->dba) did.refused++;
		else e->state = READY;
	}
	attach(e, m);
	answer(e);
}

static void push(struct entry *e)
{
	while (e->flying < WINDOW && e->sent < e->len && !e->abort) {
		uint32_t n = e->len - e->sent < segment ? e->len - e->sent : segment;
		int last = e->sent + n == e->len;
		rdma_write((uintptr_t)mem->addr + e->dba + e->sent, n, e->sba + e->sent, e->rkey, last, IMM_READ | (e->tid & ~IMM_READ), e - in);
		e->sent += n;
		e->flying++;
	}
}

static void on_release(struct entry *e, const struct message *m)
{
	if (e->seen && e->tid == m->tid && e->state == FREE) {
		tell(&(struct message){ .type = RELEASED, .slot = NO_SLOT, .tid = e->tid });
	} else if (e->seen && e->tid == m->tid) {
		attach(e, m);
		e->leave = 1;
		e->abort |= !!(m->flags & F_ABORT);
		try_release(e);
	} else if (m->flags & F_ABORT && e->state == FREE) {
		*e = (struct entry){ .seen = 1, .tid = m->tid, .slot = NO_SLOT };
		attach(e, m);
		vacate(e);
		tell(&(struct message){ .type = RELEASED, .slot = NO_SLOT, .tid = e->tid });
	}
}

static void on_segment(uint32_t imm, uint32_t n)
{
	uint32_t s = imm >> 8 & 0xff, tid = imm >> 16 & 0x7fff;
	if (s >= n_slots) { broken = "no such slot"; return; }
	struct lot *l = &lots[s];
	struct entry *e = &in[tid & (entries - 1)];
	if (!l->busy) l->busy = 1, l->tid = tid;
	if (l->tid != tid || (l->segments & 0xff) != (imm & 0xff) || l->received + n > slot_len) { broken = "a segment out of order"; return; }
	l->segments++;
	l->received += n;
	if (!l->known && (e->state == ASKED || e->state == READY) && !e->kind && e->slot == NO_SLOT && (e->tid & 0x7fff) == tid) l->known = 1, e->slot = s;
	if (!l->known) { l->parked = 1; return; }
	l->parked |= !e->answered;
	move(e);
	try_release(e);
}

/* ---- initiator: one transfer at a time ---- */

enum { IDLE, ASKING, DIRECT, INDIRECT, READING, RELEASING, DONE };

static struct {
	int state, kind, dynamic, answered, timeouts, flying;
	uint32_t tid, len, sent, rkey, seq;
	uint16_t slot;
	uint64_t src, dba, to;
	int64_t due;
} out;

static struct { uint64_t direct, indirect, late, timeouts, invalid; } got;

static void ask(int type)
{
	struct message m = { .type = type, .flags = (out.kind ? F_READ : 0) | (out.slot != NO_SLOT ? F_INDIRECT : 0), .slot = out.slot, .tid = out.tid, .len = out.len };
	if (type == REQUEST) m.sba = (uintptr_t)mem->addr + out.src, m.dba = out.dba, m.rkey = mem->rkey;
	tell(&m);
	out.due = now() + timeout_us;
}

static void stream(void)
{
	while ((out.state == DIRECT || out.state == INDIRECT) && out.flying < WINDOW && out.sent < out.len) {
		uint32_t n = out.len - out.sent < segment ? out.len - out.sent : segment;
		uint64_t from = (uintptr_t)mem->addr + out.src + out.sent;
		if (out.state == DIRECT) rdma_write(from, n, out.to + out.sent, out.rkey, 0, 0, MAX_ENTRIES);
		else rdma_write(from, n, peer.base + (uint64_t)out.slot * peer.slot + out.sent, peer.rkey, 1,
			(out.tid & 0x7fff) << 16 | (uint32_t)out.slot << 8 | (out.seq++ & 0xff), MAX_ENTRIES);
		out.sent += n;
		out.flying++;
	}
}

static void go_indirect(void)
{
	if (out.kind || !out.dynamic || !peer.slots || out.len > peer.slot) return;
	out.state = INDIRECT;
	out.slot = out.tid % peer.slots; /* free: one transfer at a time */
	got.indirect++;
	stream();
}

static void release_out(void)
{
	out.state = RELEASING;
	ask(RELEASE);
}

static void on_answer(const struct message *m)
{
	if (m->tid != out.tid) return;
	if (!(m->flags & F_VALID)) {
		if (out.answered || (out.state != ASKING && out.state != INDIRECT)) return;
		got.invalid++;
		out.due = now() + timeout_us;
		out.timeouts = 0;
		if (out.state == ASKING) go_indirect();
	} else if (out.state == ASKING) {
		out.answered = 1, out.to = m->dba, out.rkey = m->rkey;
		if (out.kind) {
			out.state = READING;
			ask(CONFIRM);
			return;
		}
		out.state = DIRECT;
		got.direct++;
		stream();
	} else if (out.state == INDIRECT && !out.answered) {
		out.answered = 1;
		got.late++;
		if (out.sent == out.len && !out.flying) release_out();
	} else if (out.state == READING) {
		ask(CONFIRM);
	}
}

static void on_read_data(uint32_t tid)
{
	if (tid != (out.tid & ~IMM_READ) || !out.kind) return;
	if (out.state == ASKING || out.state == READING) {
		if (out.state == ASKING) got.late++;
		release_out();
	}
}

/* ---- the loop ---- */

static void complete(struct ibv_wc *wc)
{
	struct message m;
	int kind = wc->wr_id >> 56;
	uint64_t i = wc->wr_id & 0xffff;
	if (wc->status) {
		if (kind == WR_DATA || kind == WR_WRITE) broken = ibv_wc_status_str(wc->status);
		return;
	}
	switch (kind) {
	case WR_CTL_IN:
		if (wc->byte_len > GRH && parse((uint8_t *)ctl->addr + i * CTL_LEN + GRH, wc->byte_len - GRH, &m)) {
			struct entry *e = &in[m.tid & (entries - 1)];
			if (m.type == REQUEST) on_request(e, &m);
			else if (m.type == RELEASE) on_release(e, &m);
			else if (m.type == ANSWER) on_answer(&m);
			else if (m.type == RELEASED && m.tid == out.tid && out.state == RELEASING) out.state = DONE;
			else if (m.type == CONFIRM && m.tid == e->tid && e->state == READY && e->kind) did.readdirect++, e->state = SENDING, push(e);
			else did.stale++;
		}
		post_ctl(i);
		break;
	case WR_DATA:
		post_data();
		if (wc->opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
			uint32_t imm = ntohl(wc->imm_data);
			if (imm & IMM_READ) on_read_data(imm & ~IMM_READ);
			else on_segment(imm, wc->byte_len);
		}
		break;
	case WR_WRITE:
		if (i == MAX_ENTRIES) {
			out.flying--;
			stream();
			if (out.sent == out.len && !out.flying && (out.state == DIRECT || (out.state == INDIRECT && out.answered))) release_out();
		} else {
			struct entry *e = &in[i];
			e->flying--;
			push(e);
			if (e->state == SENDING && e->sent == e->len && !e->flying) e->state = SENT;
			try_release(e);
		}
	}
}

static void step(void)
{
	struct ibv_wc wc[16];
	int n = ibv_poll_cq(cq, 16, wc);
	for (int k = 0; k < n; k++) complete(&wc[k]);
	int64_t t = now();
	for (uint32_t k = 0; k < entries; k++) {
		struct entry *e = &in[k];
		if (e->state != READY || !e->kind || !e->answered || t < e->due) continue;
		if (++e->timeouts < 2) {
			e->due = t + timeout_us;
			answer(e);
			continue;
		}
		did.readindirect++;
		e->state = SENDING;
		push(e);
	}
	if (t >= out.due && out.state == ASKING) {
		got.timeouts++;
		if (++out.timeouts >= 2) go_indirect();
		ask(REQUEST);
	} else if (t >= out.due && out.state == INDIRECT && !out.answered) {
		ask(REQUEST);
	} else if (t >= out.due && out.state == RELEASING) {
		ask(RELEASE);
	}
	if (n == 0) usleep(100);
}

static void cmd_serve(void)
{
	uint64_t n = num("n", 1);
	int64_t end = now() + 1000 * (int64_t)num("ms", 10000), linger;
	memset(&did, 0, sizeof did);
	frp = num("frp", 0), never = num("never", 0);
	srand(num("seed", 1));
	while (did.served < n && !broken && now() < end) step();
	for (linger = now() + 20 * timeout_us; now() < linger && !broken;) step(); /* the last answer may be lost */
	if (broken) { printf("err %s\n", broken); return; }
	printf("ok served=%llu delivered=%llu parked=%llu straight=%llu refused=%llu readdirect=%llu readindirect=%llu stale=%llu\n",
		(unsigned long long)did.served, (unsigned long long)did.delivered, (unsigned long long)did.parked, (unsigned long long)did.straight,
		(unsigned long long)did.refused, (unsigned long long)did.readdirect, (unsigned long long)did.readindirect, (unsigned long long)did.stale);
}

static void transfers(int kind)
{
	static uint32_t tid;
	int64_t end = now() + 1000 * (int64_t)num("ms", 10000);
	memset(&got, 0, sizeof got);
	if (!tid) tid = 0xfffffff0u; /* across wrap-around */
	for (uint64_t k = 0; k < num("n", 1); k++) {
		memset(&out, 0, sizeof out);
		out.state = ASKING, out.kind = kind, out.dynamic = num("dynamic", 1), out.slot = NO_SLOT, out.len = num("len", 0);
		out.tid = tid++;
		out.src = num("src", 0) + k * num("step", 0), out.dba = num("dba", 0) + k * num("step", 0);
		ask(REQUEST);
		while (out.state != DONE && !broken && now() < end) step();
		if (broken || out.state != DONE) { printf("err transfer %llu: %s in state %d\n", (unsigned long long)k, broken ? broken : "no end", out.state); return; }
	}
	printf("ok direct=%llu indirect=%llu late=%llu timeouts=%llu invalid=%llu\n", (unsigned long long)got.direct, (unsigned long long)got.indirect,
		(unsigned long long)got.late, (unsigned long long)got.timeouts, (unsigned long long)got.invalid);
}

static void cmd_put(void) { transfers(0); }
static void cmd_get(void) { transfers(1); }

static void cmd_vanish(void)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_ERR };
	if ((errno = ibv_modify_qp(rc, &a, IBV_QP_STATE))) fail("modify_qp");
	else printf("ok\n");
}

/* ---- memory ---- */

static void block(int check)
{
	uint64_t len = num("len", 0);
	uint8_t *p = (uint8_t *)mem->addr + num("off", 0);
	for (uint64_t i = 0; i < len; i++) {
		uint8_t want = pattern(num("seed", 0), i);
		if (!check) p[i] = want;
		else if (p[i] != want) { printf("err byte %llu: is 0x%02x, should be 0x%02x\n", (unsigned long long)i, p[i], want); return; }
	}
	printf("ok\n");
}

static void cmd_fill(void) { block(0); }
static void cmd_check(void) { block(1); }

static const struct command commands[] = {
	{ "open", cmd_open }, { "join", cmd_join }, { "serve", cmd_serve }, { "put", cmd_put }, { "get", cmd_get }, { "vanish", cmd_vanish },
	{ "fill", cmd_fill }, { "check", cmd_check },
};

int main(void) { return CONVERSE(commands); }
