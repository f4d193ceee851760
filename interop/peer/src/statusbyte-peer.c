/* statusbyte-peer: the peer of transport/statusbyte, on libibverbs and librdmacm only.
 *
 * conversation.h describes how it is controlled. The layout of blocks, arrays and private data is
 * that of transport/statusbyte.
 *
 *   listen port blocks size           -> ok
 *   serve  ms retain                  -> ok packets bytes gaps dups wrong bad retained
 *          takes one sender until it disconnects; retain: keep every retain-th packet in its
 *          block for a while
 *   send   addr port blocks size devices packets ms
 *                                     -> ok packets bytes syncs blocks size
 *          blocks=0, size=0: those of the receiver. Rejected: err with the receiver's sizes
 *
 * Packet n of device d has (7919 d + 977 n) mod (size + 1) bytes, byte i is 31 d + 17 n + i.
 */
#include <arpa/inet.h>
#include <infiniband/verbs.h>

#include "conversation.h"
#define MAGIC "GXSB"
#include "rdma_cm.h"

enum { HEADER = 8, ALIGN = 64, MAX_BLOCKS = 4096, DEVICES = 256, KEEP = 16, QUEUE = 64, REPLY = 40 };
enum { EMPTY, HAS_DATA, UNAVAILABLE };
enum { SYNC_ID = 1 << 20 };

/* ---- one connection ---- */

static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *data_mr, *status_mr;
static uint8_t *data, *status;
static uint32_t stride;

static uint32_t stride_of(uint32_t n) { return (HEADER + n + ALIGN - 1) / ALIGN * ALIGN; }

static int open_qp(void)
{
	struct ibv_qp_init_attr a = {
		.qp_type = IBV_QPT_RC, .cap = {.max_send_wr = QUEUE, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 16},
	};
	if (!(pd = ibv_alloc_pd(id->verbs)) || !(cq = ibv_create_cq(id->verbs, QUEUE, NULL, NULL, 0))) return -1;
	a.send_cq = a.recv_cq = cq;
	return rdma_create_qp(id, pd, &a);
}

static int open_memory(int rights)
{
	stride = stride_of(size);
	if (posix_memalign((void **)&data, 4096, (size_t)blocks * stride) || posix_memalign((void **)&status, 4096, MAX_BLOCKS)) return -1;
	memset(data, 0, (size_t)blocks * stride);
	memset(status, 0, MAX_BLOCKS);
	data_mr = ibv_reg_mr(pd, data, (size_t)blocks * stride, rights);
	status_mr = ibv_reg_mr(pd, status, MAX_BLOCKS, rights);
	return data_mr && status_mr ? 0 : -1;
}

static void close_all(void)
{
	if (id && id->qp) rdma_destroy_qp(id);
	if (data_mr) ibv_dereg_mr(data_mr);
	if (status_mr) ibv_dereg_mr(status_mr);
	if (cq) ibv_destroy_cq(cq);
	if (pd) ibv_dealloc_pd(pd);
	if (id) rdma_destroy_id(id);
	free(data);
	free(status);
	id = NULL, pd = NULL, cq = NULL, data_mr = status_mr = NULL, data = status = NULL;
}

/* ---- the content of packets ---- */

static uint32_t length(int d, uint32_t n) { return (7919u * d + 977u * n) % (size + 1); }

static void fill(uint8_t *b, int d, uint32_t n, uint32_t len)
{
	for (uint32_t i = 0; i < len; i++) b[i] = 31 * d + 17 * n + i;
}

static int good(const uint8_t *b, int d, uint32_t n, uint32_t len)
{
	if (len != length(d, n)) return 0;
	for (uint32_t i = 0; i < len; i++)
		if (b[i] != (uint8_t)(31 * d + 17 * n + i)) return 0;
	return 1;
}

/* ---- receiving ---- */

static int accept_one(int64_t until)
{
	struct rdma_cm_event *e = NULL;
	struct rdma_conn_param c = {.responder_resources = 16, .initiator_depth = 1, .rnr_retry_count = 7};
	uint8_t reply[REPLY];
	uint32_t n, s, w;
	uint64_t a;
	if (event(RDMA_CM_EVENT_CONNECT_REQUEST, until, &e)) {
		if (e) rdma_ack_cm_event(e);
		return fail("wait for a sender");
	}
	id = e->id;
	int bad = get_sizes(e->param.conn.private_data, e->param.conn.private_data_len, &n, &s);
	rdma_ack_cm_event(e);
	put_sizes(reply);
	if (bad || (n && n != blocks) || (s && s != size)) {
		rdma_reject(id, reply, REQUEST);
		errno = EINVAL;
		return fail("the sender wants other sizes");
	}
	if (open_qp() || open_memory(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)) return fail("make a receiver");
	w = htobe32(stride), memcpy(reply + 12, &w, 4);
	a = htobe64((uintptr_t)data), memcpy(reply + 16, &a, 8);
	w = htobe32(data_mr->rkey), memcpy(reply + 24, &w, 4);
	w = htobe32(status_mr->rkey), memcpy(reply + 28, &w, 4);
	a = htobe64((uintptr_t)status), memcpy(reply + 32, &a, 8);
	c.private_data = reply;
	c.private_data_len = REPLY;
	if (rdma_accept(id, &c) || step(RDMA_CM_EVENT_ESTABLISHED, until)) return fail("accept");
	return 0;
}

static struct {
	uint64_t packets, bytes, gaps, dups, wrong, bad, retained;
	uint16_t next[DEVICES];
	uint32_t full[DEVICES]; /* the same without wrap-around */
	int kept[MAX_BLOCKS];   /* packets until a retained block is released */
	int early, by;          /* block of the earliest packet that is out of order, or -1 */
} rx;

static void set(uint32_t j, uint8_t v) { __atomic_store_n(status + j, v, __ATOMIC_RELEASE); }

/* take examines block j; jump: numbers may be missing. It returns whether it took a packet. */
static int take(uint32_t j, int jump, unsigned retain)
{
	uint8_t *b = data + (size_t)j * stride;
	uint16_t n;
	uint32_t len;
	switch (__atomic_load_n(status + j, __ATOMIC_ACQUIRE)) {
	case EMPTY: return 0;
	case HAS_DATA: break;
	default: rx.bad++; set(j, EMPTY); return 0;
	}
	memcpy(&n, b + 1, 2), n = be16toh(n);
	memcpy(&len, b + 4, 4), len = be32toh(len);
	int d = b[0];
	int16_t ahead = n - rx.next[d];
	if (ahead > 0 && !jump) {
		if (rx.early < 0 || ahead < rx.by) rx.early = j, rx.by = ahead;
		return 0;
	}
	if (ahead < 0) {
		rx.dups++;
		set(j, EMPTY);
		return 1;
	}
	rx.gaps += ahead;
	rx.full[d] += ahead;
	if (len || !(b[3] & 1)) {
		if (len > size || !good(b + HEADER, d, rx.full[d], len)) rx.wrong++;
		rx.packets++;
		rx.bytes += len;
	}
	rx.full[d]++;
	rx.next[d] = n + 1;
	if (retain && rx.packets % retain == 0) {
		rx.kept[j] = KEEP;
		rx.retained++;
		set(j, UNAVAILABLE);
	} else {
		set(j, EMPTY);
	}
	return 1;
}

/* scan takes the packets that are next. A retained block is released after a while. */
static int scan(unsigned retain)
{
	int got = 0;
	rx.early = -1;
	for (uint32_t j = 0; j < blocks; j++)
		if (!rx.kept[j]) got += take(j, 0, retain);
	for (uint32_t j = 0; j < blocks; j++)
		if (rx.kept[j] && (rx.kept[j] -= got) <= 0) rx.kept[j] = 0, set(j, EMPTY);
	return got;
}

/* look scans. If two scans find only later packets, the missing ones were never sent, because a
 * connection's WRITEs land in order. */
static int look(unsigned retain)
{
	int got = scan(retain), early = rx.early;
	if (!got && early >= 0 && !(got = scan(retain))) got = take(early, 1, retain);
	return got;
}

static void do_serve(void)
{
	int64_t until = now() + 1000 * (int64_t)num("ms", 60000);
	unsigned retain = num("retain", 0);
	memset(&rx, 0, sizeof rx);
	if (accept_one(until)) {
		close_all();
		return;
	}
	for (int idle = 0;;) {
		/* Check before scanning: what was written before the end must still be taken. */
		int over = idle % 64 == 0 && gone();
		if (look(retain)) idle = 0;
		else idle++;
		if (over) {
			while (look(0));
			break;
		}
		if (now() > until) break;
		if (idle > 1000) nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
	}
	rdma_disconnect(id);
	close_all();
	printf("ok packets=%lu bytes=%lu gaps=%lu dups=%lu wrong=%lu bad=%lu retained=%lu\n", rx.packets, rx.bytes, rx.gaps, rx.dups, rx.wrong, rx.bad, rx.retained);
}

/* ---- sending ---- */

static struct {
	uint64_t data, status, packets, bytes, syncs;
	uint32_t data_key, status_key, stride, used, at, to;
	uint8_t own[MAX_BLOCKS];
} tx;

static int connect_to(int64_t until)
{
	struct rdma_cm_event *e = NULL;
	uint8_t ask[REQUEST];
	struct rdma_conn_param c = {.responder_resources = 1, .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7, .private_data = ask, .private_data_len = REQUEST};
	put_sizes(ask);
	if (resolve(until)) return -1;
	if (open_qp() || rdma_connect(id, &c)) return fail("connect");
	if (event(RDMA_CM_EVENT_ESTABLISHED, until, &e)) {
		uint32_t n, s;
		if (e && e->event == RDMA_CM_EVENT_REJECTED && !get_sizes(e->param.conn.private_data, e->param.conn.private_data_len, &n, &s))
			printf("err refused: the receiver has blocks=%u size=%u\n", n, s);
		else
			fail("connect");
		if (e) rdma_ack_cm_event(e);
		return -1;
	}
	const uint8_t *b = e->param.conn.private_data;
	uint32_t w;
	if (e->param.conn.private_data_len < REPLY || get_sizes(b, REPLY, &blocks, &size) || !blocks || blocks > MAX_BLOCKS) {
		rdma_ack_cm_event(e);
		errno = EPROTO;
		return fail("what the receiver says");
	}
	memcpy(&w, b + 12, 4), tx.stride = be32toh(w);
	memcpy(&tx.data, b + 16, 8), tx.data = be64toh(tx.data);
	memcpy(&w, b + 24, 4), tx.data_key = be32toh(w);
	memcpy(&w, b + 28, 4), tx.status_key = be32toh(w);
	memcpy(&tx.status, b + 32, 8), tx.status = be64toh(tx.status);
	rdma_ack_cm_event(e);
	return open_memory(IBV_ACCESS_LOCAL_WRITE) ? fail("memory") : 0;
}

/* reap handles completions; wait: at least one. Their send blocks are empty again; -1 if one failed. */
static int reap(int wait, int *synced, int64_t until)
{
	struct ibv_wc wc;
	do {
		int n = ibv_poll_cq(cq, 1, &wc);
		if (n < 0 || (n && wc.status != IBV_WC_SUCCESS)) {
			printf("err completion: %s\n", n < 0 ? "poll" : ibv_wc_status_str(wc.status));
			return -1;
		}
		if (!n && now() > until) {
			errno = ETIMEDOUT;
			return fail("wait for a completion");
		}
		if (n && wc.wr_id == SYNC_ID) tx.used--, *synced = 1;
		else if (n) tx.used -= 2, tx.own[wc.wr_id] = EMPTY;
		if (n) wait = 0;
	} while (wait);
	return 0;
}

/* target finds an empty receive block. It READs the array into status while there is none. */
static int target(int64_t until)
{
	for (;;) {
		for (uint32_t k = 0; k < blocks; k++) {
			uint32_t j = (tx.to + k) % blocks;
			if (status[j] == EMPTY) return j;
		}
		struct ibv_sge g = {.addr = (uintptr_t)status, .length = blocks, .lkey = status_mr->lkey};
		struct ibv_send_wr *bad, w = {.wr_id = SYNC_ID, .sg_list = &g, .num_sge = 1, .opcode = IBV_WR_RDMA_READ, .send_flags = IBV_SEND_SIGNALED,
			.wr.rdma = {tx.status, tx.status_key}};
		int synced = 0;
		while (tx.used + 1 > QUEUE)
			if (reap(1, &synced, until)) return -1;
		if ((errno = ibv_post_send(id->qp, &w, &bad))) return fail("post READ");
		tx.used++, tx.syncs++;
		while (!synced)
			if (reap(1, &synced, until)) return -1;
	}
}

static int send_one(int d, uint32_t n, uint8_t flags, int64_t until)
{
	static const uint8_t one = HAS_DATA;
	int synced = 0, j;
	uint32_t i = tx.at++ % blocks, len = flags ? 0 : length(d, n), l = htobe32(len);
	uint16_t number = htobe16(n);
	while (tx.own[i] != EMPTY || tx.used + 2 > QUEUE)
		if (reap(1, &synced, until)) return -1;
	uint8_t *b = data + (size_t)i * stride;
	b[0] = d, b[3] = flags;
	memcpy(b + 1, &number, 2), memcpy(b + 4, &l, 4);
	fill(b + HEADER, d, n, len);
	tx.own[i] = HAS_DATA;
	if ((j = target(until)) < 0) return -1;
	struct ibv_sge g[2] = {{(uintptr_t)b, HEADER + len, data_mr->lkey}, {(uintptr_t)&one, 1, 0}};
	struct ibv_send_wr *bad, w[2] = {
		{.sg_list = &g[0], .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .wr.rdma = {tx.data + (uint64_t)j * tx.stride, tx.data_key}, .next = &w[1]},
		{.wr_id = i, .sg_list = &g[1], .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE, .wr.rdma = {tx.status + j, tx.status_key}},
	};
	if ((errno = ibv_post_send(id->qp, w, &bad))) return fail("post WRITEs");
	status[j] = HAS_DATA;
	tx.used += 2, tx.to = (j + 1) % blocks;
	if (!flags) tx.packets++, tx.bytes += len;
	return 0;
}

static void do_send(void)
{
	int64_t until = now() + 1000 * (int64_t)num("ms", 60000);
	uint32_t devices = num("devices", 1), packets = num("packets", 1);
	int synced = 0, r;
	memset(&tx, 0, sizeof tx);
	blocks = num("blocks", 0);
	size = num("size", 0);
	r = connect_to(until);
	for (uint32_t n = 0; !r && n < packets; n++)
		for (uint32_t d = 0; !r && d < devices; d++) r = send_one(d, n, 0, until);
	for (uint32_t d = 0; !r && d < devices; d++) r = send_one(d, packets, 1, until);
	while (!r && tx.used) r = reap(1, &synced, until);
	if (!r) {
		rdma_disconnect(id);
		step(RDMA_CM_EVENT_DISCONNECTED, until); /* a lost DREQ is repeated only as long as id exists */
		printf("ok packets=%lu bytes=%lu syncs=%lu blocks=%u size=%u\n", tx.packets, tx.bytes, tx.syncs, blocks, size);
	}
	close_all();
}

static const struct command commands[] = { { "listen", do_listen }, { "serve", do_serve }, { "send", do_send } };

int main(void) { return CONVERSE(commands); }
