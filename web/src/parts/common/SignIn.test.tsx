import { MantineProvider, Modal, TextInput } from "@mantine/core";
import { QueryClient, QueryClientProvider, useQuery } from "@tanstack/react-query";
import { act, fireEvent, render, screen, waitFor } from "@testing-library/react";
import { useState } from "react";
import { MemoryRouter } from "react-router";
import { afterEach, describe, expect, test, vi, type MockInstance } from "vitest";
import { api, ApiError } from "../../api/client";
import { CHANNEL, onOtherTabs } from "./otherTabs";
import { SignedIn, SignOut } from "./SignIn";

afterEach(() => {
  vi.unstubAllGlobals();
  vi.restoreAllMocks();
  vi.useRealTimers();
});

/** A service that answers only once the right token was sent. */
function guarded() {
  let isSignedIn = false;
  const json = (status: number, body: unknown) =>
    new Response(JSON.stringify(body), {
      status,
      headers: { "content-type": status < 400 ? "application/json" : "application/problem+json" },
    });
  vi.stubGlobal("fetch", async (request: Request) => {
    if (request.url.endsWith("/session") && request.method === "POST") {
      isSignedIn = ((await request.json()) as { token: string }).token === "tnr_right";
      return isSignedIn
        ? json(200, { required: true, name: "me", role: "viewer", expires_at: null })
        : json(401, { title: "Unauthorized", detail: "this token is not valid" });
    }
    return isSignedIn
      ? json(200, { items: [], next_page_token: null })
      : json(401, { title: "Unauthorized", detail: "a token is needed" });
  });
}

function Page() {
  const { data } = useQuery({ queryKey: ["experiments"], queryFn: () => api.experiments({}), retry: false });
  return <p>{data ? "the list" : "waiting"}</p>;
}

function show() {
  render(
    <MantineProvider>
      <MemoryRouter>
        <QueryClientProvider client={new QueryClient()}>
          <SignedIn>
            <Page />
          </SignedIn>
        </QueryClientProvider>
      </MemoryRouter>
    </MantineProvider>,
  );
}

test("a service that asks for a token gets one, and the page loads", async () => {
  guarded();
  show();
  const field = await screen.findByLabelText(/Token/);
  fireEvent.change(field, { target: { value: "tnr_wrong" } });
  fireEvent.click(screen.getByRole("button", { name: "Sign in" }));
  await screen.findByText("this token is not valid");
  fireEvent.change(field, { target: { value: " tnr_right " } });
  fireEvent.click(screen.getByRole("button", { name: "Sign in" }));
  await screen.findByText("the list");
  await waitFor(() => expect(screen.queryByRole("button", { name: "Sign in" })).toBeNull());
});

test("a service with an identity provider offers to sign in there, and to return to the page", async () => {
  window.history.replaceState(null, "", "/experiments/exp_1?view=chart");
  vi.stubGlobal("fetch", (request: Request) => {
    const isSession = request.url.endsWith("/session");
    const body = isSession
      ? { required: true, name: null, role: null, expires_at: null, project: null, sign_in_url: "/auth/login" }
      : { title: "Unauthorized", detail: "a token is needed" };
    return Promise.resolve(
      new Response(JSON.stringify(body), {
        status: isSession ? 200 : 401,
        headers: { "content-type": isSession ? "application/json" : "application/problem+json" },
      }),
    );
  });
  show();
  const link = await screen.findByRole("link", { name: "Sign in with your organization" });
  expect(link.getAttribute("href")).toBe("/auth/login?next=%2Fexperiments%2Fexp_1%3Fview%3Dchart");
});

const otherTab = new BroadcastChannel(CHANNEL);

test.each([
  ["has no channels", undefined],
  [
    "refuses them",
    class {
      constructor() {
        throw new DOMException("The operation is insecure.", "SecurityError");
      }
    },
  ],
])("a browser that %s shows the page, and lets people sign out", async (_, channels) => {
  vi.resetModules();
  vi.stubGlobal("BroadcastChannel", channels);
  const tabs = await import("./otherTabs");
  expect(tabs.onOtherTabs).not.toBe(onOtherTabs);
  const end = tabs.onOtherTabs(() => {});
  tabs.tellOtherTabs();
  end();
  vi.unstubAllGlobals();
});

describe("if a session ends while somebody types", () => {
  /** Show a page that reads each second, with a dialog that it opens at a click. */
  function Form() {
    const { data } = useQuery({
      queryKey: ["experiments"],
      queryFn: () => api.experiments({}),
      refetchInterval: 1000,
      retry: false,
      gcTime: 0,
      meta: { needsDriver: true },
    });
    const [opened, setOpened] = useState(false);
    if (!data) return <p>waiting</p>;
    return (
      <>
        <label>
          Notes
          <textarea />
        </label>
        <button onClick={() => setOpened(true)}>Edit</button>
        <SignOut name="me" />
        <Modal opened={opened} onClose={() => {}} title="A dialog">
          <TextInput label="Name" />
        </Modal>
      </>
    );
  }

  let name: string | null = "me";
  let role = "editor";
  let client: QueryClient;
  let read: MockInstance<typeof api.experiments>;

  async function type(dialog = true) {
    vi.useFakeTimers({ shouldAdvanceTime: true });
    [name, role] = ["me", "editor"];
    vi.spyOn(api, "session").mockImplementation(() => Promise.resolve({ required: true, name, role } as never));
    read = vi
      .spyOn(api, "experiments")
      .mockImplementation(() =>
        name === null
          ? Promise.reject(new ApiError(401, "a token is needed"))
          : Promise.resolve({ items: [] } as never),
      );
    vi.spyOn(api, "signIn").mockImplementation((token) =>
      Promise.resolve({ required: true, name: (name = token), role } as never),
    );
    render(
      <MantineProvider env="test">
        <MemoryRouter>
          <QueryClientProvider
            client={(client = new QueryClient({ defaultOptions: { queries: { staleTime: 2000 } } }))}
          >
            <SignedIn>
              <Form />
            </SignedIn>
          </QueryClientProvider>
        </MemoryRouter>
      </MantineProvider>,
    );
    fireEvent.change(await screen.findByLabelText("Notes"), { target: { value: "an hour of typing" } });
    if (!dialog) return;
    fireEvent.click(screen.getByRole("button", { name: "Edit" }));
    fireEvent.change(await screen.findByLabelText("Name"), { target: { value: "digits-2" } });
  }

  async function ends() {
    name = null;
    await screen.findByLabelText(/Token/);
  }

  async function signIn(as: string) {
    fireEvent.change(screen.getByLabelText(/Token/), { target: { value: as } });
    fireEvent.click(screen.getByRole("button", { name: "Sign in" }));
    await waitFor(() => expect(screen.queryByLabelText(/Token/)).toBeNull());
  }

  test("the page and its dialog are hidden, and come back with the text", async () => {
    await type();
    await ends();
    for (const label of ["Notes", "Name"]) {
      expect(screen.queryByLabelText(label)).not.toBeNull();
      expect(screen.queryByRole("textbox", { name: label })).toBeNull();
    }
    await signIn("me");
    expect((await screen.findByRole<HTMLInputElement>("textbox", { name: "Name" })).value).toBe("digits-2");
    expect(screen.getByLabelText<HTMLTextAreaElement>("Notes").value).toBe("an hour of typing");
  });

  test("the focus comes back to where they typed", async () => {
    await type(false);
    act(() => screen.getByLabelText("Notes").focus());
    await ends();
    await signIn("me");
    await act(() => vi.advanceTimersByTimeAsync(100));
    expect(document.activeElement).toBe(screen.getByLabelText("Notes"));
  });

  test("the hidden page asks for nothing, and loses nothing in an hour", async () => {
    await type();
    await ends();
    const before = read.mock.calls.length;
    await act(() => vi.advanceTimersByTimeAsync(3_600_000));
    expect(read.mock.calls.length).toBe(before);
    await signIn("me");
    await waitFor(() => expect(read.mock.calls.length).toBe(before + 1));
    expect(screen.getByLabelText<HTMLTextAreaElement>("Notes").value).toBe("an hour of typing");
    expect(screen.getByLabelText<HTMLInputElement>("Name").value).toBe("digits-2");
  });

  test("its requests keep their options, such as how long an answer is kept", async () => {
    await type();
    await ends();
    await signIn("me");
    const query = client.getQueryCache().find({ queryKey: ["experiments"] })!;
    expect([query.gcTime, query.meta]).toEqual([0, { needsDriver: true }]);
  });

  test("it comes back if they sign in in another tab, as with a provider, which opens in one", async () => {
    await type();
    vi.spyOn(api, "session").mockImplementation(() =>
      Promise.resolve({ required: true, name, role, sign_in_url: "/auth/login" } as never),
    );
    await ends();
    const link = await screen.findByRole("link", { name: "Sign in with your organization" });
    expect(link.getAttribute("target")).toBe("_blank");
    name = "me";
    act(() => void window.dispatchEvent(new Event("visibilitychange")));
    await waitFor(() => expect(screen.queryByLabelText(/Token/)).toBeNull());
    expect((await screen.findByRole<HTMLInputElement>("textbox", { name: "Name" })).value).toBe("digits-2");
  });

  test("nobody else sees it", async () => {
    await type();
    await ends();
    await signIn("ada");
    expect((await screen.findByLabelText<HTMLTextAreaElement>("Notes")).value).toBe("");
    expect(screen.queryByLabelText("Name")).toBeNull();
  });

  test("nor does somebody else who signs in in another tab", async () => {
    await type();
    await ends();
    await waitFor(() => expect(client.getQueryData(["session"])).toMatchObject({ name: null }));
    name = "ada";
    act(() => void window.dispatchEvent(new Event("visibilitychange")));
    await waitFor(() => expect(screen.queryByLabelText(/Token/)).toBeNull());
    expect((await screen.findByLabelText<HTMLTextAreaElement>("Notes")).value).toBe("");
    expect(screen.queryByLabelText("Name")).toBeNull();
  });

  test("they come back at once if they sign in in another tab that is beside this one", async () => {
    await type();
    await ends();
    await waitFor(() => expect(client.getQueryData(["session"])).toMatchObject({ name: null }));
    name = "me";
    otherTab.postMessage(null);
    await waitFor(() => expect(screen.queryByLabelText(/Token/)).toBeNull());
    expect((await screen.findByRole<HTMLInputElement>("textbox", { name: "Name" })).value).toBe("digits-2");
  });

  test("they come back if they have signed in in another tab before the form was there", async () => {
    await type();
    read.mockRejectedValueOnce(new ApiError(401, "a token is needed"));
    await act(() => client.refetchQueries({ queryKey: ["session"] }));
    await act(() => client.refetchQueries({ queryKey: ["experiments"] }));
    await screen.findByLabelText(/Token/);
    await act(() => vi.advanceTimersByTimeAsync(500));
    expect(screen.queryAllByLabelText(/Token/)).toHaveLength(0);
    expect((await screen.findByRole<HTMLInputElement>("textbox", { name: "Name" })).value).toBe("digits-2");
  });

  test("a page that asks for nothing follows somebody else who signs in, or out, in another tab", async () => {
    await type(false);
    await waitFor(() => expect(client.getQueryData(["session"])).toMatchObject({ name: "me" }));
    name = "ada";
    otherTab.postMessage(null);
    await waitFor(() => expect(screen.getByLabelText<HTMLTextAreaElement>("Notes").value).toBe(""));
    name = null;
    otherTab.postMessage(null);
    await screen.findByLabelText(/Token/);
  });

  test("nor does a token of the same name with other rights", async () => {
    await type();
    await ends();
    role = "viewer";
    await signIn("me");
    expect((await screen.findByLabelText<HTMLTextAreaElement>("Notes")).value).toBe("");
  });

  test("the page stays, and says so, if signing out fails", async () => {
    await type();
    const signOut = vi.spyOn(api, "signOut").mockRejectedValue(new ApiError(0, "The service is not responding."));
    fireEvent.click(screen.getByText("me · sign out"));
    expect(await screen.findByText("You are still signed in.")).toBeTruthy();
    expect(screen.getByLabelText<HTMLTextAreaElement>("Notes").value).toBe("an hour of typing");
    signOut.mockImplementation(() => Promise.resolve((name = null)));
    fireEvent.click(screen.getByText("me · sign out"));
    await screen.findByLabelText(/Token/);
    await waitFor(() => expect(screen.queryByText("You are still signed in.")).toBeNull()); // the form may be there before
  });

  test("nothing of it is left after somebody has signed out", async () => {
    const heard = vi.fn();
    otherTab.addEventListener("message", heard, { once: true });
    await type();
    vi.spyOn(api, "signOut").mockImplementation(() => Promise.resolve((name = null)));
    fireEvent.click(screen.getByText("me · sign out"));
    await screen.findByLabelText(/Token/);
    await waitFor(() => expect(screen.queryByLabelText("Notes")).toBeNull());
    await waitFor(() => expect(heard).toHaveBeenCalled());
    await signIn("me");
    expect((await screen.findByLabelText<HTMLTextAreaElement>("Notes")).value).toBe("");
  });
});
