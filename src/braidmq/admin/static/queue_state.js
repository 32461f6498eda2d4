// What a queue does when it has no room, in words, and whether that is happening now.

/** The strategies of a full queue, as the API names them, with their labels. */
export const OVERFLOWS = [
  ["DropOldest", "Drop the oldest"],
  ["DropNewest", "Refuse the newest"],
  ["BlockPublisher", "Make publishers wait"],
  ["RedirectToDlq", "Redirect to the dead-letter queue"],
];
const NEARLY = 0.9;

const EFFECTS = {
  DropOldest: ["drops messages", "each new message drops the oldest one, which no consumer gets"],
  DropNewest: ["refuses messages", "new messages are refused, and their publishers are told"],
  BlockPublisher: ["publishers wait", "publishers wait until a consumer makes room"],
  RedirectToDlq: ["redirects messages", "new messages become dead letters"],
};

/** Return the label of what *queue* does when it is full. */
export function whenFull(queue) {
  return OVERFLOWS.find(([word]) => word === queue.overflowStrategy)?.[1] ?? queue.overflowStrategy;
}

/** Return `{mark, text}` if *queue* loses, refuses or holds up messages now, or soon will; else null. */
export function warning(queue) {
  if (queue.deliveryMode === "FanOutWithoutAck" && queue.subscriberCount === 0) {
    return { mark: "drops messages", text: "The queue has no consumer: what is published now is dropped." };
  }
  if (!queue.maxQueueSize) return null;
  const redirectsNowhere = queue.overflowStrategy === "RedirectToDlq" && !queue.enableDeadLetterQueue;
  const effect = EFFECTS[redirectsNowhere ? "DropNewest" : queue.overflowStrategy];
  if (!effect) return null;
  if (queue.messageCount >= queue.maxQueueSize) return { mark: effect[0], text: `The queue is full: ${effect[1]}.` };
  if (queue.messageCount < NEARLY * queue.maxQueueSize) return null;
  return { mark: "nearly full", text: `The queue is nearly full. When it is, ${effect[1]}.` };
}
