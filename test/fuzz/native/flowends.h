/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * flowends.h: the part of flow.c that ends connections: what must become of a SYN, FIN or RST, and of the
 * records of its connection. Included by flow.c alone.
 */
static uint32_t slow_reach(const struct record *r) { return slow_window(r, 66000); }

/* Does a FIN or RST fit what is known in its direction, or in the other one? */
static int slow_belongs(const struct record *r, const struct record *rev, uint32_t seq, int refusal)
{
	int hears = rev && slow_watched(rev);

	if (!slow_watched(r) && !hears)
		return 1;
	if (hears && near(seq, rev->ack, slow_reach(rev)))
		return 1;
	if (slow_watched(r) && near(seq, r->seq, hears ? slow_reach(rev) : 1 << 20))
		return 1;
	return refusal && r->state == SLOT_SEEN && r->liberal;
}

/* Keys of the connection's packets in the direction of i that count, at any port; in the order of ports. */
static int counting(int i, int keys[2])
{
	int both[2] = { i, other_port(i) }, n = 0;

	if (is_moved(i)) {
		both[0] = other_port(i);
		both[1] = i;
	}
	for (int j = 0; j < 2; j++)
		if (both[j] >= 0 && records[both[j]].known && records[both[j]].liberal && slow_watched(&records[both[j]]))
			keys[n++] = both[j];
	return n;
}

/* The same for all its keys: does one fit? 0: none does. `at` is the one of i's direction that does, or -1; `zoned`:
 * one of i's direction is of another conntrack zone. */
static int slow_search(int i, uint32_t seq, int *at, int *zoned)
{
	int keys[2], n = counting(i, keys), answers[2], m = 0;

	*at = -1;
	*zoned = 0;
	for (int j = 0; j < n; j++)
		*zoned |= !!records[keys[j]].zone;
	for (int j = 0; j < n; j++)
		if (near(seq, records[keys[j]].seq, 66000)) {
			*at = keys[j];
			return 1;
		}
	if (n && records[keys[n - 1]].paired)
		m = counting(i ^ 1, answers);
	for (int j = 0; j < m; j++)
		if (near(seq, records[answers[j]].ack, slow_reach(&records[answers[j]])))
			return 1;
	return 0;
}

static void slow_forget(struct record *r)
{
	r->window = r->watch = 0;
	r->paired = r->liberal = r->zone = 0;
}

static void slow_close(struct record *r, uint32_t seq, enum slot_state state)
{
	if (!r || !r->known || r->slot == held)
		return;
	r->state = state;
	r->count = 0;
	r->lease = now + (state == SLOT_CLOSED ? ctl.lease : 0);
	if (state == SLOT_CLOSED)
		return;
	if (r->liberal && !r->zone)	/* instead of a time */
		r->lease = (uint64_t)(uint32_t)(seq + 1) - clock_from;
	else
		slow_forget(r);
}

static void slow_renounce(struct record *r)
{
	if (!r || !r->known || r->slot == held)
		return;
	slow_forget(r);
	r->state = SLOT_SEEN;
}

static struct record *reverse_of(int i)
{
	return records[i].known && records[i].paired && records[i ^ 1].known ? &records[i ^ 1] : 0;
}

/* Is conntrack told of a reset by the entry of key i? told_zone: of which zone. */
static int told_zone;

static int is_told(int i, uint32_t seq, unsigned flags, int stranger)
{
	const struct record *r = &records[i], *rev = reverse_of(i);

	if ((flags & (TCP_SYN | TCP_FIN | TCP_RST | TCP_URG)) != TCP_RST || !r->known || !r->liberal || r->state == SLOT_CLOSED)
		return 0;
	if (stranger && r->state == SLOT_ARMED)
		return 0;
	if (!(slow_watched(r) && seq == r->seq) && !(rev && slow_watched(rev) && seq == rev->ack))
		return 0;
	told_zone = r->zone;
	return 1;
}

/* What must become of a FIN or RST that does not fit its own entries: 1: dropped. */
static int slow_doubt(int i, uint32_t seq, unsigned flags, int stranger, unsigned *told)
{
	struct record *r = &records[i], *rev = reverse_of(i);
	int keys[2], at, zoned, known = r->liberal && slow_watched(r) && (!rev || slow_watched(rev));

	if (r->known && r->liberal && !known)
		return 0;
	if (slow_search(i, seq, &at, &zoned)) {
		*told += is_told(i, seq, flags, stranger);
		slow_close(r, seq, SLOT_CLOSED);
		slow_close(rev, seq, SLOT_CLOSED);
		if (at >= 0) {
			*told += is_told(at, seq, flags, stranger);
			rev = reverse_of(at);
			slow_close(&records[at], seq, SLOT_CLOSED);
			slow_close(rev, seq, SLOT_CLOSED);
		}
		return 0;
	}
	if (!known && !counting(i, keys))
		return 0;
	if (zoned || (r->known && r->zone) || (native_tracked && native_ct.proto.tcp.seen[1].flags))
		return 1;
	slow_renounce(r);
	slow_renounce(rev);
	return 0;
}

/* SYN, FIN and RST: judged, told to conntrack, and both directions are closed at once. */
static void close_flow(int i, struct input *in)
{
	unsigned flags = take8(in), near_by = take8(in), told = native_events, before = told, tracked = take8(in);
	struct record *r = &records[i], *rev = &records[i ^ 1];
	uint32_t seq = take32(in), ack = r->lease + clock_from;
	const struct event *e = (void *)native_event;
	enum reason reason, want;
	struct segment x;
	int stranger = near_by >> 4 & 1;	/* for another machine */

	if (near_by & 1)
		seq = r->seq;
	if (near_by & 2)
		seq = rev->ack + (int16_t)seq;
	if (near_by & 4)	/* the very edges of what is believed, and one beyond */
		seq = near_by & 8 ? rev->ack + slow_reach(rev) + (seq & 1) : rev->ack - slow_reach(rev) - (seq & 1);
	if (near_by & 32 && other_port(i) >= 0)
		seq = (near_by & 64 ? records[other_port(i)].seq : records[other_port(i) ^ 1].ack) + (int8_t)seq;
	if (near_by & 128)
		ack++;
	flags = flags & (TCP_SYN | TCP_FIN | TCP_RST) ? flags : TCP_RST;
	want = flags & TCP_SYN ? REASON_TCP_SYN : REASON_TCP_CLOSE;
	segment(&x, i, seq, ack, 0, flags);
	x.bytes[5] ^= stranger;
	native_tracked = tracked & 1;
	native_ct.proto.tcp.seen[1].flags = tracked & 2 ? IP_CT_TCP_FLAG_BE_LIBERAL : 0;
	rev = reverse_of(i);

	if (want == REASON_TCP_SYN) {
		slow_close(r, seq, SLOT_SEEN);
		slow_close(rev, seq, SLOT_SEEN);
	} else if (r->known && slow_belongs(r, rev, seq, (flags & (TCP_RST | TCP_ACK)) == (TCP_RST | TCP_ACK) && !(near_by & 128))) {
		told += is_told(i, seq, flags, stranger);
		slow_close(r, seq, SLOT_CLOSED);
		slow_close(rev, seq, SLOT_CLOSED);
	} else if (slow_doubt(i, seq, flags, stranger, &told)) {
		want = REASON_TCP_IMPLAUSIBLE;
	}
	reason = close_by(0, &x.f, flags & TCP_SYN ? REASON_TCP_SYN : REASON_TCP_CLOSE);
	WANT(reason == want, "reason %d for key %d, not %d", want, i, reason);
	WANT(native_events == told, "resets of key %d are told: %u", i, told);
	if (told != before)
		WANT(e->kind == EVENT_RESET && e->sport == x.f.key.sport && e->dport == x.f.key.dport && e->zone == told_zone &&
		     e->saddr[is_six(i) ? 3 : 0] == x.f.key.saddr && e->daddr[is_six(i) ? 3 : 0] == x.f.key.daddr,
		     "whose reset it is");
}
