export interface RetryPolicy {
  attempts: number;
  firstDelayMs: number;
}

const sleep = (ms: number) => new Promise<void>((resolve) => setTimeout(resolve, ms));

export async function fetchJson<T>(url: string, policy: RetryPolicy, signal?: AbortSignal): Promise<T> {
  let delay = policy.firstDelayMs;
  for (let attempt = 1; ; attempt++) {
    try {
      const response = await fetch(url, { signal, headers: { accept: "application/json" } });
      if (!response.ok) {
        throw new Error(`${url} answered ${response.status}`);
      }
      return (await response.json()) as T;
    } catch (error) {
      if (attempt >= policy.attempts || signal?.aborted) {
        throw error;
      }
      await sleep(delay);
      delay *= 2;
    }
  }
}
